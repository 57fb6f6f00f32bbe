//! A tier's queue and its threads.
//!
//! Each runnable job gets a thread, which afterwards waits for the next job. Calls of a tier block,
//! possibly forever. A call that exceeds its time-out is abandoned: another call may run in its
//! place, and the transfer's result is published when the abandoned call returns. The engine
//! decides whether to keep using a tier that fails or stalls. A load keeps its blocks borrowed
//! until its call returns. A store returns them once their bytes are copied, and can then be
//! cancelled even while it runs.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::answers::Reply;
use super::call::{Brought, Worker};
use super::clock::Clock;
use super::limits::Limits;
use super::queue::{Free, Job, Queue, Work, WorkKind};
use super::transfer::{Fault, Moved, Pool};
use crate::key::PartKey;
use crate::tier::{Take, TierError};

/// Error text of rejected jobs, after the tier's name.
const EVERY_THREAD_HANGS: &str = "does not answer: every thread that may use it hangs in a call";

/// Time after which an idle thread ends.
const REST: Duration = Duration::from_secs(60);

/// Queue and threads of one tier.
pub(crate) struct TierQueue<P: Pool> {
    worker: Worker,
    limits: Limits,
    clock: Arc<dyn Clock>,
    state: Mutex<QueueState<P>>,
    /// Signals a runnable job or the close of the queue.
    work: Condvar,
    /// Signals the end of a job or a change of `phase`.
    changed: Condvar,
}

struct QueueState<P: Pool> {
    queue: Queue<P>,
    /// Calls in progress, by ticket.
    running: BTreeMap<u64, Running>,
    tickets: u64,
    /// Number of idle threads.
    resting: usize,
    /// Number of loads that found a damaged part (KV head of a chunk) since the start.
    damaged: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Accepts no jobs and finishes queued stores and removals.
    Draining,
    Closed,
}

/// A call in progress.
struct Running {
    id: u64,
    kind: WorkKind,
    asked: Duration,
    since: Duration,
    abandoned: bool,
    /// The call is a store that has returned its blocks.
    copied: bool,
    /// None once the result is published.
    reply: Option<Arc<Reply>>,
}

impl<P: Pool> QueueState<P> {
    /// Calls in progress: the probes, or all others.
    fn calls(&self, probes: bool) -> impl Iterator<Item = &Running> {
        let own = move |run: &&Running| (run.kind == WorkKind::Probe) == probes;
        self.running.values().filter(own)
    }

    /// Whether every thread for this kind of work hangs in a call.
    fn hangs(&self, probes: bool, limits: &Limits) -> bool {
        self.calls(probes).all(|run| run.abandoned)
            && self.calls(probes).count() >= limits.threads(probes) + limits.abandoned
    }

    /// Kinds of work that may start now. Stores leave one thread free for loads. A removal never
    /// runs beside a store, which could restore the removed data.
    fn free(&self, limits: &Limits) -> Free {
        let thread = |probes| {
            let awaited = self.calls(probes).filter(|run| !run.abandoned).count();
            let most = limits.threads(probes);
            awaited < most && self.calls(probes).count() < most + limits.abandoned
        };
        let of = |kind| self.running.values().filter(|run| run.kind == kind).count();
        let (stores, removals) = (of(WorkKind::Store), of(WorkKind::Remove));
        let free = thread(false);
        Free {
            probe: thread(true),
            load: free,
            store: free && stores < limits.stores() && removals == 0,
            remove: free && stores + removals == 0,
        }
    }

    /// Takes the next runnable job and counts it as running. Returns its ticket and its work.
    fn begin(&mut self, limits: &Limits, now: Duration) -> Option<(u64, Work<P>)> {
        let free = self.free(limits);
        let Job {
            id,
            asked,
            work,
            reply,
        } = self.queue.next(free)?;
        self.tickets += 1;
        let run = Running {
            id,
            kind: work.kind(),
            asked,
            since: now,
            abandoned: false,
            copied: false,
            reply: Some(reply),
        };
        self.running.insert(self.tickets, run);
        Some((self.tickets, work))
    }

    fn idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty()
    }
}

/// Classifies a result for the tier's health.
fn fault(result: &Result<Brought, TierError>) -> Fault {
    match result {
        Ok(_) | Err(TierError::Missing) => Fault::None,
        Err(TierError::Damaged(_)) => Fault::Damaged,
        Err(TierError::Full(_)) => Fault::Full,
        Err(TierError::Failed(_)) => Fault::Failed,
    }
}

impl<P: Pool> TierQueue<P> {
    /// An empty queue.
    pub(crate) fn new(worker: Worker, limits: Limits, clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = QueueState {
            queue: Queue::new(),
            running: BTreeMap::new(),
            tickets: 0,
            resting: 0,
            damaged: 0,
            phase: Phase::Open,
        };
        Arc::new(Self {
            worker,
            limits,
            clock,
            state: Mutex::new(state),
            work: Condvar::new(),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a job, or rejects it immediately.
    pub(crate) fn submit(self: &Arc<Self>, job: Job<P>) {
        let probe = job.work.kind() == WorkKind::Probe;
        let mut state = self.lock();
        let (open, hangs) = (state.phase == Phase::Open, state.hangs(probe, &self.limits));
        if open && !hangs {
            state.queue.push(job);
            drop(state);
            return self.dispatch();
        }
        drop(state);
        match open {
            true => self.answer_undone(vec![job], Fault::Failed, EVERY_THREAD_HANGS),
            false => self.answer_undone(vec![job], Fault::None, "is closed"),
        }
    }

    /// Wakes an idle thread. If no thread is idle, starts one thread for each runnable job.
    fn dispatch(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.resting > 0 {
            return self.work.notify_one();
        }
        while let Some((ticket, work)) = state.begin(&self.limits, self.clock.now()) {
            drop(state);
            let tier = Arc::clone(self);
            let thread = std::thread::Builder::new().name("penstock-kv-io".into());
            if let Err(error) = thread.spawn(move || tier.serve(ticket, work)) {
                // The failed start dropped the thread's closure, and with it the work and its
                // blocks.
                let failed = TierError::Failed(format!("no thread: {error}"));
                self.end(ticket, Err(failed));
            }
            state = self.lock();
        }
    }

    fn serve(self: Arc<Self>, mut ticket: u64, mut work: Work<P>) {
        loop {
            let copied = || {
                if let Some(run) = self.lock().running.get_mut(&ticket) {
                    run.copied = true;
                }
            };
            let result = self.worker.call(work, copied);
            self.end(ticket, result);
            match self.wait_for_job() {
                Some(next) => (ticket, work) = next,
                None => return,
            }
            // More jobs may be runnable in parallel.
            self.dispatch();
        }
    }

    /// Waits for the next runnable job; None after the idle time-out, or when the queue is closed.
    fn wait_for_job(&self) -> Option<(u64, Work<P>)> {
        let mut state = self.lock();
        state.resting += 1;
        let mut begun = None;
        let waiting = |state: &mut QueueState<P>| {
            begun = state.begin(&self.limits, self.clock.now());
            begun.is_none() && state.phase != Phase::Closed
        };
        let waited = self.work.wait_timeout_while(state, REST, waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0.resting -= 1;
        begun
    }

    /// Publishes the result of a job whose blocks were returned.
    fn end(&self, ticket: u64, result: Result<Brought, TierError>) {
        let now = self.clock.now();
        let mut state = self.lock();
        let run = state.running.remove(&ticket);
        let fault = fault(&result);
        state.damaged += u64::from(fault == Fault::Damaged);
        self.changed.notify_all();
        drop(state);
        // Cancelled stores already have a result.
        let Some((run, reply)) = run.and_then(|mut run| run.reply.take().map(|reply| (run, reply)))
        else {
            return;
        };
        let (done, error) = match &result {
            Ok(_) => (true, String::new()),
            Err(TierError::Missing) => (false, String::new()),
            Err(error) => (false, format!("{}: {error}", self.worker.name())),
        };
        let brought = result.unwrap_or_default();
        // A removal's result is shared by all tiers, so chunks that left this tier are reported
        // with the tier's next result.
        let left = match run.kind {
            WorkKind::Remove => Vec::new(),
            _ => self.worker.left(),
        };
        reply.join(Moved {
            id: run.id,
            done,
            found: brought.found,
            bytes: brought.bytes,
            seconds: now.saturating_sub(run.since).as_secs_f64(),
            waited: run.since.saturating_sub(run.asked).as_secs_f64(),
            error,
            fault,
            left,
        });
    }

    /// See [`Mover::load_by`](super::Mover::load_by).
    pub(crate) fn load_by(
        &self,
        key: &PartKey,
        bytes: usize,
        take: Take<'_>,
    ) -> Result<(), TierError> {
        let answer = self.worker.load_by(key, bytes, take);
        let damaged = matches!(answer, Err(TierError::Damaged(_)));
        self.lock().damaged += u64::from(damaged);
        answer
    }

    /// Publishes the results of jobs that were not started. The error text is the tier's name
    /// followed by `why`; an empty `why` means cancelled.
    fn answer_undone(&self, jobs: Vec<Job<P>>, fault: Fault, why: &str) {
        let error = match why {
            "" => String::new(),
            why => format!("{} {why}", self.worker.name()),
        };
        for job in jobs {
            // Return the blocks before the result is visible.
            drop(job.work);
            let refused = Moved::refused(job.id, error.as_str());
            job.reply.join(Moved { fault, ..refused });
        }
    }

    /// Cancels queued jobs of these transfers, and running stores that have returned their blocks.
    /// The running stores finish without another result.
    pub(crate) fn cancel(&self, ids: &[u64]) {
        let mut state = self.lock();
        let jobs = state.queue.cancel(ids);
        let copied = |run: &&mut Running| run.copied && ids.contains(&run.id);
        let stores = state.running.values_mut().filter(copied);
        let replies: Vec<_> = stores.filter_map(|run| run.reply.take()).collect();
        self.changed.notify_all();
        drop(state);
        self.answer_undone(jobs, Fault::None, "");
        let cancelled = |reply: &Arc<Reply>| reply.join(Moved::default());
        replies.iter().for_each(cancelled);
    }

    /// Abandons calls that exceed their time-out.
    pub(crate) fn watch(self: &Arc<Self>) {
        let (now, stall) = (self.clock.now(), self.limits.stall);
        let mut state = self.lock();
        for run in state.running.values_mut() {
            run.abandoned |= now.saturating_sub(run.since) > stall;
        }
        let none_left = [false, true]
            .iter()
            .any(|&probes| state.hangs(probes, &self.limits));
        let waiting = match none_left {
            true => state.queue.clear(false),
            false => Vec::new(),
        };
        drop(state);
        self.dispatch();
        self.answer_undone(waiting, Fault::Failed, EVERY_THREAD_HANGS);
    }

    /// Starts the upkeep thread of a chunk tier.
    ///
    /// # Errors
    /// The thread could not be started.
    pub(crate) fn start_upkeep(self: &Arc<Self>) -> std::io::Result<()> {
        let own = Arc::clone(self);
        let thread = std::thread::Builder::new().name("penstock-kv-up".into());
        thread.spawn(move || own.upkeep()).map(drop)
    }

    fn upkeep(&self) {
        let Worker::Chunks { tier, .. } = &self.worker else {
            return;
        };
        let mut state = self.lock();
        while state.phase == Phase::Open {
            let waiting = |s: &mut QueueState<P>| s.phase == Phase::Open;
            let waited = self
                .changed
                .wait_timeout_while(state, self.limits.tick, waiting);
            let (next, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(next);
            if waited.timed_out() {
                // The panic was reported on stderr; retry in the next round.
                let _ = catch_unwind(AssertUnwindSafe(|| tier.tick()));
            }
            state = self.lock();
        }
    }

    /// Starts the drain: cancels everything but stores and removals, and rejects new work.
    pub(crate) fn drain(&self) {
        let mut state = self.lock();
        if state.phase != Phase::Open {
            return;
        }
        state.phase = Phase::Draining;
        let jobs = state.queue.clear(true);
        self.changed.notify_all();
        drop(state);
        self.answer_undone(jobs, Fault::None, "");
    }

    /// Waits until all stores are done, or until the deadline `until`; then cancels the rest. A
    /// thread that hangs in a call ends when the call returns.
    pub(crate) fn shut(&self, until: Instant) {
        let limit = until.saturating_duration_since(Instant::now());
        let busy = |state: &mut QueueState<P>| !state.idle();
        let waited = self.changed.wait_timeout_while(self.lock(), limit, busy);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.phase = Phase::Closed;
        let jobs = state.queue.clear(false);
        self.work.notify_all();
        self.changed.notify_all();
        drop(state);
        self.answer_undone(jobs, Fault::None, "is closed before this was done");
    }

    /// A chunk tier's part of [`Mover::report`](super::Mover::report).
    pub(crate) fn report(&self) -> Option<serde_json::Value> {
        let Worker::Chunks { tier, .. } = &self.worker else {
            return None;
        };
        let state = self.lock();
        let hanging = state.running.values().filter(|run| run.abandoned).count();
        let damaged = state.damaged;
        drop(state);
        let counters: BTreeMap<_, _> = tier.counters().into_iter().collect();
        Some(serde_json::json!({
            "name": tier.name(),
            "damaged": damaged,
            "hanging": hanging,
            "counters": counters,
        }))
    }
}
