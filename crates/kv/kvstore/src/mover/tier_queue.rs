//! A tier's queue and its threads.
//!
//! A job that may begin gets a thread, which waits for the next one. Calls of a tier block, some
//! for ever. A call that takes too long is abandoned: another may run in its place, and the
//! transfer is answered when the call returns. The engine decides whether a tier that fails or
//! stalls is used further. Blocks of a load are lent until then; those of a store until their bytes
//! are copied, and such a store can be cancelled though it was begun.

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

/// Why a tier takes no jobs.
const EVERY_THREAD_HANGS: &str = "does not answer: every thread that may use it hangs in a call";

/// How long a thread waits for another job.
const REST: Duration = Duration::from_secs(60);

/// See the module's text.
pub(crate) struct TierQueue<P: Pool> {
    worker: Worker,
    limits: Limits,
    clock: Arc<dyn Clock>,
    state: Mutex<State<P>>,
    /// A job may begin, or the queue is closed.
    work: Condvar,
    /// A job ended, or the phase changed.
    changed: Condvar,
}

struct State<P: Pool> {
    queue: Queue<P>,
    /// By the number of the call.
    running: BTreeMap<u64, Running>,
    tickets: u64,
    /// Threads that wait for a job.
    resting: usize,
    /// Loads of damaged parts since the start.
    damaged: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Stores are finished.
    Draining,
    Closed,
}

/// A call under way.
struct Running {
    id: u64,
    kind: WorkKind,
    asked: Duration,
    since: Duration,
    abandoned: bool,
    /// A store that needs its blocks no more.
    copied: bool,
    /// None: answered already.
    reply: Option<Arc<Reply>>,
}

impl<P: Pool> State<P> {
    /// Calls of probes, or of the other kinds.
    fn calls(&self, probes: bool) -> impl Iterator<Item = &Running> {
        let own = move |run: &&Running| (run.kind == WorkKind::Probe) == probes;
        self.running.values().filter(own)
    }

    /// Whether every thread that may do such work hangs in a call.
    fn hangs(&self, probes: bool, limits: &Limits) -> bool {
        self.calls(probes).all(|run| run.abandoned)
            && self.calls(probes).count() >= limits.threads(probes) + limits.abandoned
    }

    /// At most so many stores run at once that a load finds a thread. A removal runs beside no
    /// store, so that no earlier store brings back what it forgets.
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

    /// Takes a job that may begin out of the queue: the number of its call, and its work.
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

/// What a result says of the tier.
fn fault(result: &Result<Brought, TierError>) -> Fault {
    match result {
        Ok(_) | Err(TierError::Missing) => Fault::None,
        Err(TierError::Damaged(_)) => Fault::Damaged,
        Err(TierError::Full(_)) => Fault::Full,
        Err(TierError::Failed(_)) => Fault::Failed,
    }
}

impl<P: Pool> TierQueue<P> {
    /// Nothing waits yet.
    pub(crate) fn new(worker: Worker, limits: Limits, clock: Arc<dyn Clock>) -> Arc<Self> {
        let state = State {
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

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job in, or answers it at once.
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

    /// Wakes a thread for a job that may begin, or starts threads for all such jobs.
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
                // The work is gone with its blocks.
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
            // Others may begin beside it.
            self.dispatch();
        }
    }

    /// None when no job comes for long, or the queue is closed.
    fn wait_for_job(&self) -> Option<(u64, Work<P>)> {
        let mut state = self.lock();
        state.resting += 1;
        let mut begun = None;
        let waiting = |state: &mut State<P>| {
            begun = state.begin(&self.limits, self.clock.now());
            begun.is_none() && state.phase != Phase::Closed
        };
        let waited = self.work.wait_timeout_while(state, REST, waiting);
        waited.unwrap_or_else(PoisonError::into_inner).0.resting -= 1;
        begun
    }

    /// Answers a job whose blocks were given back.
    fn end(&self, ticket: u64, result: Result<Brought, TierError>) {
        let now = self.clock.now();
        let mut state = self.lock();
        let run = state.running.remove(&ticket);
        let fault = fault(&result);
        state.damaged += u64::from(fault == Fault::Damaged);
        self.changed.notify_all();
        drop(state);
        // Cancelled stores were answered before.
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
        // The answer to a removal is one of all tiers: the next one of this tier says it.
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

    /// Answers jobs that were taken out of the queue. `why` follows the tier's name; empty: they
    /// were cancelled.
    fn answer_undone(&self, jobs: Vec<Job<P>>, fault: Fault, why: &str) {
        let error = match why {
            "" => String::new(),
            why => format!("{} {why}", self.worker.name()),
        };
        for job in jobs {
            // Blocks are given back before the answer is visible.
            drop(job.work);
            let refused = Moved::refused(job.id, error.as_str());
            job.reply.join(Moved { fault, ..refused });
        }
    }

    /// Answers those of the transfers that were not begun, and stores that need their blocks no
    /// more: these go on unseen.
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

    /// Abandons calls that take too long: the watchdog.
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

    /// Starts the upkeep of a chunk tier.
    ///
    /// # Errors
    /// The operating system refused a thread.
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
            let waiting = |s: &mut State<P>| s.phase == Phase::Open;
            let waited = self
                .changed
                .wait_timeout_while(state, self.limits.tick, waiting);
            let (next, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(next);
            if waited.timed_out() {
                // A panic has been reported on stderr; the next round may do better.
                let _ = catch_unwind(AssertUnwindSafe(|| tier.tick()));
            }
            state = self.lock();
        }
    }

    /// Begins the end: what is not a store or a removal is answered, new work is refused.
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

    /// Waits until all is stored, or until `until`; answers what still waits then. Threads that
    /// hang in a call end when it returns.
    pub(crate) fn shut(&self, until: Instant) {
        let limit = until.saturating_duration_since(Instant::now());
        let busy = |state: &mut State<P>| !state.idle();
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
