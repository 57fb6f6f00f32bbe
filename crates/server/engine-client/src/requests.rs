use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use penstock_wire::{Add, Cancel, Finish, FrameError, FrontFrame, KvReply, Output, TokenRequest};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

use crate::connection::{Outbox, OutgoingFrame};

/// An event of a request. The terminal event is an output with a finish, or `Failed`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Output(Output),
    /// The engine was lost; the reason names the cause.
    Failed {
        reason: Arc<str>,
    },
}

impl Event {
    /// True for the last event of a request.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Output(output) => output.finish != Finish::None,
            Self::Failed { .. } => true,
        }
    }
}

/// The events of one request. Dropping it before the terminal event cancels the request.
#[derive(Debug)]
pub struct RequestStream {
    id: u64,
    events: UnboundedReceiver<Event>,
    requests: Arc<Requests>,
    ended: bool,
}

impl RequestStream {
    /// The request's id at the engine.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The next event; `None` after the terminal one. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The poll function of [`Self::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(cx));
        self.ended = event.as_ref().is_none_or(Event::is_terminal);
        Poll::Ready(event)
    }
}

impl Drop for RequestStream {
    fn drop(&mut self) {
        if !self.ended {
            self.requests.abandon(self.id);
        }
    }
}

/// The engine's reply to a command, or the reason why the engine was lost before it replied.
pub(crate) type Answer = Result<KvReply, Arc<str>>;

/// The requests in flight at one engine. Ids are unique across restarts.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) last_id: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    open: HashMap<u64, Open>,
    /// Operator commands without a reply yet.
    pub(crate) commands: HashMap<u64, oneshot::Sender<Answer>>,
    /// `None` while no engine is ready.
    pub(crate) outbox: Option<Outbox>,
}

/// A request that the engine may have received.
struct Open {
    /// `None` if the stream was dropped but the engine has not ended the request yet.
    events: Option<UnboundedSender<Event>>,
    add: OutgoingFrame,
    _hold: Hold,
}

/// A guard, such as a permit, that is dropped once the engine has ended the request.
pub(crate) type Hold = Box<dyn Send>;

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open")
            .field("abandoned", &self.events.is_none())
            .finish_non_exhaustive()
    }
}

impl Requests {
    /// Sends requests to `outbox` from now on.
    pub(crate) fn attach(&self, outbox: Outbox) {
        self.lock().outbox = Some(outbox);
    }

    /// Sends the request to the engine; `None` if no engine is ready. `hold` is dropped when the
    /// engine has ended the request, possibly after the stream was dropped.
    pub(crate) fn submit(
        self: &Arc<Self>,
        request: TokenRequest,
        hold: Hold,
    ) -> Result<Option<RequestStream>, FrameError> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let mut frame = Vec::new();
        FrontFrame::Add(Add { id, request }).encode(&mut frame)?;
        let mut table = self.lock();
        let Some(outbox) = &table.outbox else {
            return Ok(None);
        };
        // A send fails if the connection has just ended; the supervisor then fails all requests in
        // the table.
        let add = OutgoingFrame::new(frame);
        let _ = outbox.send(add.clone());
        let (sender, events) = unbounded_channel();
        let open = Open {
            events: Some(sender),
            add,
            _hold: hold,
        };
        table.open.insert(id, open);
        Ok(Some(RequestStream {
            id,
            events,
            requests: Arc::clone(self),
            ended: false,
        }))
    }

    /// Delivers each output to its request. Outputs of abandoned requests are dropped.
    pub(crate) fn deliver(&self, outputs: Vec<Output>) {
        let mut table = self.lock();
        for output in outputs {
            let sender = match output.finish {
                Finish::None => table
                    .open
                    .get(&output.id)
                    .and_then(|open| open.events.clone()),
                _ => table.open.remove(&output.id).and_then(|open| open.events),
            };
            if let Some(sender) = sender {
                // The stream may be dropped concurrently.
                let _ = sender.send(Event::Output(output));
            }
        }
    }

    /// Fails every open request and command; new ones are rejected until the next
    /// [`Requests::attach`].
    pub(crate) fn fail_all(&self, reason: &str) {
        let reason: Arc<str> = reason.into();
        let mut table = self.lock();
        table.outbox = None;
        for sender in table.open.drain().filter_map(|(_, open)| open.events) {
            let _ = sender.send(Event::Failed {
                reason: Arc::clone(&reason),
            });
        }
        for (_, sender) in table.commands.drain() {
            let _ = sender.send(Err(Arc::clone(&reason)));
        }
    }

    /// Withdraws the ADD message if it is not written yet. Otherwise sends CANCEL, and the request
    /// stays open until the engine has ended it.
    fn abandon(&self, id: u64) {
        let mut table = self.lock();
        let Some(open) = table.open.get_mut(&id) else {
            return;
        };
        if open.add.take().is_some() {
            table.open.remove(&id);
            return;
        }
        open.events = None;
        let mut frame = Vec::new();
        if let (Some(outbox), Ok(())) = (
            &table.outbox,
            FrontFrame::Cancel(Cancel { ids: vec![id] }).encode(&mut frame),
        ) {
            let _ = outbox.send(OutgoingFrame::new(frame));
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
