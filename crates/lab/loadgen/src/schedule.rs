//! The loop that sends a load's requests when they are due.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::alarm::Alarm;
use crate::connect::Connect;
use crate::exchange::Client;
use crate::failure::{Failure, FailureKind};
use crate::pool::Pool;
use crate::progress::Progress;
use crate::record::{Columns, Record};
use crate::target::Target;

/// A request of a load.
#[derive(Debug, Clone)]
pub struct Request {
    /// Due time in seconds since the start of the load.
    pub due: f64,
    /// Number of tokens that the response must have; 0: unchecked.
    pub must_produce: u32,
    /// The JSON body.
    pub body: Bytes,
}

/// Commands to a running load.
#[derive(Debug)]
pub enum Command {
    /// Adds requests. Due times must ascend, also from one `Add` to the next.
    Add(Vec<Request>),
    /// No more requests will be added.
    Close,
    /// Stops sending and aborts open requests.
    Stop,
}

/// Runs a load until all added requests have ended, on the current thread's `LocalRuntime` or
/// `LocalSet`. Returns their records.
///
/// Requests are sent in the order in which they were added, each one when it is due and fewer than
/// `max_concurrency` requests are open. A drop of the sender of `commands` stops the load.
pub async fn run_load<C: Connect + 'static>(
    target: Target,
    connect: C,
    alarm: impl Alarm,
    commands: mpsc::UnboundedReceiver<Command>,
    progress: Arc<Progress>,
) -> Columns {
    let schedule = Schedule {
        places: target.max_concurrency,
        client: Rc::new(Client {
            target,
            connect,
            pool: Pool::new(),
            start: Instant::now(),
            progress,
        }),
        waiting: VecDeque::new(),
        added: 0,
        open: JoinSet::new(),
        ended: Vec::new(),
        stop: watch::Sender::new(false),
        closed: false,
    };
    schedule.run(alarm, commands).await
}

struct Schedule<C: Connect + 'static> {
    client: Rc<Client<C>>,
    places: usize,
    /// Requests that have not been sent, in the order of their due times.
    waiting: VecDeque<(Record, Bytes)>,
    added: usize,
    open: JoinSet<Record>,
    ended: Vec<Record>,
    stop: watch::Sender<bool>,
    /// Whether no more requests will be added.
    closed: bool,
}

impl<C: Connect + 'static> Schedule<C> {
    async fn run(
        mut self,
        mut alarm: impl Alarm,
        mut commands: mpsc::UnboundedReceiver<Command>,
    ) -> Columns {
        loop {
            self.send_due();
            if self.closed && self.waiting.is_empty() && self.open.is_empty() {
                return Columns::new(self.ended);
            }
            let next = self.next_due();
            tokio::select! {
                biased;
                command = commands.recv(), if !*self.stop.borrow() => {
                    self.obey(command.unwrap_or(Command::Stop));
                }
                Some(ended) = self.open.join_next() => self.note_end(ended),
                () = alarm.until(next.unwrap_or(self.client.start)), if next.is_some() => {}
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Add(requests) => {
                let count = requests.len() as u64;
                self.waiting.reserve(requests.len());
                for request in requests {
                    let record = Record::new(self.added, request.due, request.must_produce);
                    self.waiting.push_back((record, request.body));
                    self.added += 1;
                }
                self.client.progress.added.fetch_add(count, Relaxed);
            }
            Command::Close => self.closed = true,
            Command::Stop => self.halt(),
        }
    }

    fn halt(&mut self) {
        self.closed = true;
        self.stop.send_replace(true);
        for (record, _) in std::mem::take(&mut self.waiting) {
            self.keep(record.unsent());
        }
    }

    /// When the next request is due; `None` if there is none or the concurrency limit blocks it.
    fn next_due(&self) -> Option<Instant> {
        let (record, _) = self.waiting.front()?;
        let free = self.open.len() < self.places;
        free.then(|| self.client.start + Duration::from_secs_f64(record.due))
    }

    fn send_due(&mut self) {
        let now = Instant::now();
        while self.next_due().is_some_and(|due| due <= now) {
            if let Some((record, body)) = self.waiting.pop_front() {
                self.client.progress.open.fetch_add(1, Relaxed);
                let stop = self.stop.subscribe();
                self.open
                    .spawn_local(carry(Rc::clone(&self.client), record, body, stop));
            }
        }
    }

    fn note_end(&mut self, ended: Result<Record, tokio::task::JoinError>) {
        self.client.progress.open.fetch_sub(1, Relaxed);
        match ended.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(record) => self.keep(record),
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_)) => {}
        }
    }

    fn keep(&mut self, record: Record) {
        let progress = &self.client.progress;
        let count = match record.failure {
            None => &progress.completed,
            Some(_) => &progress.failed,
        };
        count.fetch_add(1, Relaxed);
        self.ended.push(record);
    }
}

/// Sends a request and drives it until its response ends or the load is stopped.
async fn carry<C: Connect>(
    client: Rc<Client<C>>,
    mut record: Record,
    body: Bytes,
    mut stop: watch::Receiver<bool>,
) -> Record {
    tokio::select! {
        biased;
        () = client.exchange(&mut record, body) => {}
        _ = stop.wait_for(|stopped| *stopped) => {}
    }
    if !record.ended.is_nan() {
        return record;
    }
    if record.sent.is_nan() {
        return record.unsent();
    }
    record.fail(Failure::new(FailureKind::Interrupted, "stopped"));
    record.ended = client.seconds(Instant::now());
    record
}
