//! A tier of chunks behind RAM: its queue and its threads.
//!
//! Calls of a tier block, some for ever. A call that takes too long is abandoned: another thread
//! replaces the one that hangs, and the transfer keeps its blocks and is answered when the call
//! returns. The engine decides whether a tier that fails or stalls is used further.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::call::{Brought, Share};
use super::clock::Clock;
use super::limits::Limits;
use super::queue::{Busy, Job, Lane, Queue, WorkKind};
use super::transfer::{Fault, Moved, Pool};
use crate::tier::{Tier, TierError};

/// Why a tier takes no jobs.
const EVERY_THREAD_HANGS: &str = "does not answer: every thread that may use it hangs in a call";

/// See the module's text.
pub(crate) struct ChunkTier<P: Pool> {
    tier: Box<dyn Tier>,
    share: Share,
    limits: Limits,
    clock: Arc<dyn Clock>,
    state: Mutex<State<P>>,
    /// There is work, or the phase changed.
    work: Condvar,
    /// A job or a thread ended.
    ended: Condvar,
}

struct State<P: Pool> {
    queue: Queue<P>,
    running: Vec<Running>,
    tickets: u64,
    /// Loads of damaged parts since the start.
    damaged: u64,
    io: Threads,
    probe: Threads,
    phase: Phase,
    flushed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Threads {
    /// Threads that take jobs.
    live: usize,
    /// Threads that hang in a call and are not awaited.
    abandoned: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Stores are finished, until then at most.
    Draining(Instant),
    Closed,
}

/// A call under way.
struct Running {
    ticket: u64,
    lane: Lane,
    kind: WorkKind,
    since: Duration,
    abandoned: bool,
}

impl<P: Pool> State<P> {
    fn threads(&mut self, lane: Lane) -> &mut Threads {
        match lane {
            Lane::Io => &mut self.io,
            Lane::Probe => &mut self.probe,
        }
    }

    fn busy(&self) -> Busy {
        let of = |kind| self.running.iter().filter(|r| r.kind == kind).count();
        Busy {
            stores: of(WorkKind::Store),
            removals: of(WorkKind::Remove),
        }
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

impl<P: Pool> ChunkTier<P> {
    /// Starts the tier's threads.
    ///
    /// # Errors
    /// The operating system refused one.
    pub(crate) fn start(
        tier: Box<dyn Tier>,
        share: Share,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> std::io::Result<Arc<Self>> {
        let threads = |live| Threads { live, abandoned: 0 };
        let state = State {
            queue: Queue::new(),
            running: Vec::new(),
            tickets: 0,
            damaged: 0,
            io: threads(limits.io_threads),
            probe: threads(1),
            phase: Phase::Open,
            flushed: false,
        };
        let tier = Arc::new(Self {
            tier,
            share,
            limits,
            clock,
            state: Mutex::new(state),
            work: Condvar::new(),
            ended: Condvar::new(),
        });
        let started = tier.start_threads();
        if started.is_err() {
            tier.shut();
        }
        started.map(|()| tier)
    }

    fn start_threads(self: &Arc<Self>) -> std::io::Result<()> {
        for _ in 0..self.limits.io_threads {
            self.spawn(Lane::Io)?;
        }
        self.spawn(Lane::Probe)?;
        let tier = Arc::clone(self);
        let thread = std::thread::Builder::new().name("penstock-kv-up".into());
        thread.spawn(move || tier.upkeep()).map(drop)
    }

    fn spawn(self: &Arc<Self>, lane: Lane) -> std::io::Result<()> {
        let tier = Arc::clone(self);
        let name = match lane {
            Lane::Io => "penstock-kv-io",
            Lane::Probe => "penstock-kv-ask",
        };
        let thread = std::thread::Builder::new().name(name.into());
        thread.spawn(move || tier.serve(lane)).map(drop)
    }

    fn lock(&self) -> MutexGuard<'_, State<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job in, or answers it at once.
    pub(crate) fn submit(&self, job: Job<P>) {
        let lane = match job.work.kind() {
            WorkKind::Probe => Lane::Probe,
            _ => Lane::Io,
        };
        let mut state = self.lock();
        let hangs = state.threads(lane).live == 0;
        if state.phase == Phase::Open && !hangs {
            state.queue.push(job);
            self.work.notify_all();
            return;
        }
        let closed = state.phase != Phase::Open;
        drop(state);
        if closed {
            self.answer_undone(vec![job], Fault::None, "is closed");
        } else {
            self.answer_undone(vec![job], Fault::Failed, EVERY_THREAD_HANGS);
        }
    }

    /// Answers jobs that were taken out of the queue. `why` follows the tier's name; empty: they
    /// were cancelled.
    fn answer_undone(&self, jobs: Vec<Job<P>>, fault: Fault, why: &str) {
        let name = self.tier.name();
        let error = match why {
            "" => String::new(),
            why => format!("{name} {why}"),
        };
        for job in jobs {
            // Blocks are given back before the answer is visible.
            drop(job.work);
            let refused = Moved::refused(job.id, error.as_str());
            job.reply.send(Moved { fault, ..refused });
        }
    }

    /// Answers those of the transfers that were not begun.
    pub(crate) fn cancel(&self, ids: &[u64]) {
        let mut state = self.lock();
        let jobs = state.queue.cancel(ids);
        self.ended.notify_all();
        drop(state);
        self.answer_undone(jobs, Fault::None, "");
    }

    fn serve(self: Arc<Self>, lane: Lane) {
        while let Some((ticket, mut job)) = self.begin(lane) {
            let result = self.share.call(&*self.tier, &mut job.work);
            if !self.end(ticket, job, result) {
                return;
            }
        }
    }

    /// Waits for a job; `None` when the thread is to end.
    fn begin(&self, lane: Lane) -> Option<(u64, Job<P>)> {
        let mut state = self.lock();
        loop {
            let busy = state.busy();
            if let Some(job) = state.queue.next(lane, busy, self.limits.stores()) {
                state.tickets += 1;
                let ticket = state.tickets;
                state.running.push(Running {
                    ticket,
                    lane,
                    kind: job.work.kind(),
                    since: self.clock.now(),
                    abandoned: false,
                });
                return Some((ticket, job));
            }
            let over = match state.phase {
                Phase::Open => false,
                Phase::Draining(_) => state.queue.is_empty(),
                Phase::Closed => true,
            };
            if over {
                state.threads(lane).live -= 1;
                self.ended.notify_all();
                return None;
            }
            state = self
                .work
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Answers a job; `false` when the thread is to end, because another has its place.
    fn end(&self, ticket: u64, job: Job<P>, result: Result<Brought, TierError>) -> bool {
        let now = self.clock.now();
        drop(job.work);
        let mut state = self.lock();
        let at = state.running.iter().position(|r| r.ticket == ticket);
        let Some(run) = at.map(|at| state.running.swap_remove(at)) else {
            unreachable!("only the thread that began a job ends it")
        };
        let fault = fault(&result);
        state.damaged += u64::from(fault == Fault::Damaged);
        let took = now.saturating_sub(run.since);
        let waited = run.since.saturating_sub(job.asked);
        let stays = self.stays(&mut state, &run);
        self.work.notify_all();
        self.ended.notify_all();
        drop(state);
        let (done, error) = match &result {
            Ok(_) => (true, String::new()),
            Err(TierError::Missing) => (false, String::new()),
            Err(error) => (false, format!("{}: {error}", self.tier.name())),
        };
        let brought = result.unwrap_or_default();
        job.reply.send(Moved {
            id: job.id,
            done,
            found: brought.found,
            bytes: brought.bytes,
            seconds: took.as_secs_f64(),
            waited: waited.as_secs_f64(),
            error,
            fault,
        });
        stays
    }

    /// Whether a thread whose call returned takes further jobs.
    fn stays(&self, state: &mut State<P>, run: &Running) -> bool {
        let wanted = self.limits.threads(run.lane);
        let threads = state.threads(run.lane);
        if !run.abandoned {
            return true;
        }
        threads.abandoned -= 1;
        let stays = threads.live < wanted;
        threads.live += usize::from(stays);
        stays
    }

    /// Abandons calls that take too long: the watchdog.
    pub(crate) fn watch(self: &Arc<Self>) {
        let (now, stall) = (self.clock.now(), self.limits.stall);
        let mut places = Vec::new();
        let mut guard = self.lock();
        let state = &mut *guard;
        let late: Vec<_> = state
            .running
            .iter_mut()
            .filter(|r| !r.abandoned && now.saturating_sub(r.since) > stall)
            .map(|run| {
                run.abandoned = true;
                run.lane
            })
            .collect();
        let mut none_left = false;
        for lane in late {
            let threads = state.threads(lane);
            threads.live -= 1;
            threads.abandoned += 1;
            if threads.abandoned <= self.limits.abandoned {
                threads.live += 1;
                places.push(lane);
            }
            none_left |= threads.live == 0;
        }
        let waiting = match none_left {
            true => state.queue.clear(false),
            false => Vec::new(),
        };
        drop(guard);
        for lane in places {
            if self.spawn(lane).is_err() {
                self.lock().threads(lane).live -= 1;
            }
        }
        self.answer_undone(waiting, Fault::Failed, EVERY_THREAD_HANGS);
    }

    /// The tier's own upkeep, then its flush when the mover closes.
    fn upkeep(&self) {
        let mut state = self.lock();
        while state.phase == Phase::Open {
            let (next, waited) = self
                .ended
                .wait_timeout_while(state, self.limits.tick, |s| s.phase == Phase::Open)
                .unwrap_or_else(PoisonError::into_inner);
            drop(next);
            if waited.timed_out() {
                // A panic has been reported on stderr; the next round may do better.
                let _ = catch_unwind(AssertUnwindSafe(|| self.tier.tick()));
            }
            state = self.lock();
        }
        let state = self
            .ended
            .wait_while(state, |s| s.phase != Phase::Closed && !s.idle())
            .unwrap_or_else(PoisonError::into_inner);
        let phase = state.phase;
        drop(state);
        if let Phase::Draining(until) = phase {
            let limit = until.saturating_duration_since(Instant::now());
            let _ = catch_unwind(AssertUnwindSafe(|| self.tier.flush(limit)));
        }
        self.lock().flushed = true;
        self.ended.notify_all();
    }

    /// Begins the end: what is not a store or a removal is answered, new work is refused.
    pub(crate) fn drain(&self, until: Instant) {
        let mut state = self.lock();
        if state.phase != Phase::Open {
            return;
        }
        state.phase = Phase::Draining(until);
        let jobs = state.queue.clear(true);
        self.work.notify_all();
        self.ended.notify_all();
        drop(state);
        self.answer_undone(jobs, Fault::None, "");
    }

    /// Waits until all is stored and flushed, or until `until`.
    pub(crate) fn drained(&self, until: Instant) {
        let limit = until.saturating_duration_since(Instant::now());
        let busy = |s: &mut State<P>| !(s.idle() && s.flushed);
        let waited = self.ended.wait_timeout_while(self.lock(), limit, busy);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The end: answers what still waits. Threads that hang in a call end when it returns, the
    /// others at once.
    pub(crate) fn shut(&self) {
        let mut state = self.lock();
        state.phase = Phase::Closed;
        let jobs = state.queue.clear(false);
        self.work.notify_all();
        self.ended.notify_all();
        let idle = |s: &mut State<P>| {
            let calling = s.running.iter().filter(|r| !r.abandoned).count();
            s.io.live + s.probe.live > calling
        };
        let patience = Duration::from_secs(1);
        let waited = self.ended.wait_timeout_while(state, patience, idle);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.answer_undone(jobs, Fault::None, "is closed before this was done");
    }

    /// The tier's part of [`Mover::report`](super::Mover::report).
    pub(crate) fn report(&self) -> serde_json::Value {
        let state = self.lock();
        let (damaged, hanging) = (state.damaged, state.io.abandoned + state.probe.abandoned);
        drop(state);
        let counters: BTreeMap<_, _> = self.tier.counters().into_iter().collect();
        serde_json::json!({
            "name": self.tier.name(),
            "damaged": damaged,
            "hanging": hanging,
            "counters": counters,
        })
    }
}
