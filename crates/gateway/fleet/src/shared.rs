//! State that the handles, requests and tasks of a fleet share.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use penstock_routing::{Pace, ReplicaId};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Settings;
use crate::backend::Target;
use crate::load::{Load, Polled};
use crate::member::Member;
use crate::outliers::{Compared, outliers};
use crate::peer_gateways::Others;
use crate::snapshot::{Entry, Snapshot};
use crate::throughput::{Answers, Class};

/// Estimated number of uncached tokens of a prompt before the first prompt is sent.
const USUAL_TOKENS: f32 = 512.0;
/// Weight of a new prompt in the running mean of uncached tokens.
const MEAN_WEIGHT: f32 = 1.0 / 64.0;

/// Source of time.
#[derive(Debug)]
pub(crate) enum Clock {
    /// Real time, measured from this instant, the start of the fleet.
    Runs(Instant),
    /// Virtual time in nanoseconds, set by the owner.
    Set(AtomicU64),
}

impl Clock {
    pub(crate) fn runs() -> Self {
        Self::Runs(Instant::now())
    }

    pub(crate) fn set() -> Self {
        Self::Set(AtomicU64::new(0))
    }

    /// Time since the fleet started.
    fn now(&self) -> Duration {
        match self {
            Self::Runs(start) => start.elapsed(),
            Self::Set(nanoseconds) => Duration::from_nanos(nanoseconds.load(Ordering::Relaxed)),
        }
    }

    /// Advances a virtual clock. Has no effect on real time.
    pub(crate) fn advance(&self, now: Duration) {
        if let Self::Set(nanoseconds) = self {
            let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            nanoseconds.fetch_max(now, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
pub(crate) struct FleetState {
    pub settings: Settings,
    pub clock: Clock,
    snapshot: ArcSwap<Snapshot>,
    /// Id of the next replica. Locked while a snapshot is replaced.
    writer: Mutex<u32>,
    /// Running mean of the uncached tokens of this gateway's prompts, as the bits of an f32.
    mean_uncached: AtomicU32,
    /// Estimate of the load that other gateways cause.
    others: Mutex<Others>,
    /// Base URLs of the backends in the latest list.
    listed: Mutex<HashSet<Arc<str>>>,
    /// Whether a list of backends has been received.
    found: AtomicBool,
    /// Notified when a list arrives or a check completes.
    pub checked: Notify,
}

impl FleetState {
    pub(crate) fn new(settings: Settings, clock: Clock) -> Self {
        Self {
            settings,
            clock,
            snapshot: ArcSwap::default(),
            writer: Mutex::default(),
            mean_uncached: AtomicU32::new(USUAL_TOKENS.to_bits()),
            others: Mutex::default(),
            listed: Mutex::default(),
            found: AtomicBool::new(false),
            checked: Notify::new(),
        }
    }

    /// Time since the fleet started.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Maximum age of a report; older reports are ignored.
    pub(crate) fn stale(&self) -> Duration {
        Duration::from_secs_f64(self.settings.metrics.stale_s)
    }

    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Current load of a replica.
    pub(crate) fn load(&self, entry: &Entry) -> Load {
        entry.load(self.now(), self.stale(), self.usual_tokens())
    }

    /// Replaces the snapshot by a modified copy.
    fn change<T>(&self, change: impl FnOnce(&mut Snapshot, &mut u32) -> T) -> T {
        let mut next = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut snapshot = Snapshot::clone(&self.snapshot.load());
        let result = change(&mut snapshot, &mut next);
        self.snapshot.store(Arc::new(snapshot));
        result
    }

    /// Replaces the snapshot by one in which the entry for `id` is changed.
    pub(crate) fn change_entry(&self, id: ReplicaId, change: impl FnOnce(&mut Entry)) {
        self.change(|snapshot, _| snapshot.entry_mut(id).map(change));
    }

    /// Publishes a polled report.
    pub(crate) fn saw_report(&self, id: ReplicaId, polled: Polled) {
        self.count_others(&polled);
        let polled = Arc::new(polled);
        self.change_entry(id, |entry| entry.polled = Some(polled));
    }

    /// Adds a report to the estimate of the load that other gateways cause.
    pub(crate) fn count_others(&self, report: &Polled) {
        let requests = report.reported.waiting + report.reported.running;
        let own = report.own.in_flight as f32;
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.saw(requests, own);
    }

    /// Share of the replicas' requests that other gateways sent, 0 to 1.
    pub(crate) fn others(&self) -> f32 {
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.share()
    }

    /// Applies a list of backends: new backends join, missing backends drain, returning backends
    /// get requests again. Returns the new backends.
    pub(crate) fn replace_members(&self, targets: Vec<Target>) -> Vec<Entry> {
        let cold = self.found.swap(true, Ordering::Relaxed);
        let bases = targets.iter().map(|one| one.base.clone()).collect();
        *self.listed.lock().unwrap_or_else(PoisonError::into_inner) = bases;
        let added = self.change(|snapshot, next| {
            let mut added = Vec::new();
            for target in targets {
                let same = |entry: &&mut Entry| entry.target.base == target.base;
                if let Some(entry) = snapshot.entries.iter_mut().find(same) {
                    entry.target = Arc::new(target);
                    continue;
                }
                let entry = Entry::new(ReplicaId(*next), target, cold);
                *next += 1;
                snapshot.entries.push(entry.clone());
                added.push(entry);
            }
            added
        });
        self.mark_gone();
        self.checked.notify_waiters();
        added
    }

    /// Marks replicas missing from the latest list as gone. They stay in service until a listed
    /// replica accepts requests, so that a replacement of the whole list causes no outage.
    fn mark_gone(&self) {
        let (now, settings) = (self.now(), &self.settings);
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.snapshot();
        let is_listed = |entry: &Entry| listed.contains(&entry.target.base);
        let takes = |entry: &&Entry| entry.member.live.condition().takes_requests();
        let ready = snapshot.entries.iter().filter(takes).any(is_listed);
        for entry in &snapshot.entries {
            let before = entry.member.with(|record| record.standing.gone);
            let gone = !is_listed(entry) && (before || ready || listed.is_empty());
            if gone != before {
                entry
                    .member
                    .update(now, settings, |record| record.standing.gone = gone);
            }
        }
    }

    /// Removes drained replicas that the list no longer has. Returns their ids.
    pub(crate) fn remove_drained(&self) -> Vec<ReplicaId> {
        let drained = |entry: &Entry| {
            entry.member.live.own().in_flight == 0
                && entry.member.with(|record| record.standing.gone)
        };
        if !self.snapshot().entries.iter().any(drained) {
            return Vec::new();
        }
        self.change(|snapshot, _| {
            let removed = snapshot.entries.extract_if(.., |entry| drained(entry));
            removed.map(|entry| entry.id).collect()
        })
    }

    /// Applies time-dependent changes: the end of ejections and slow starts, overdue prompts.
    pub(crate) fn tick(&self) {
        let (now, stale) = (self.now(), self.stale());
        for entry in &self.snapshot().entries {
            entry.member.update(now, &self.settings, |_| {});
            let waits = |report: &Polled| report.reported.waiting > 0.0;
            let wait = entry.with_fresh(now, stale, |report| report.is_some_and(waits));
            entry.member.sweep(now, wait);
            let tokens = entry.member.live.output_tokens();
            entry
                .member
                .with(|record| record.output.sample(now, tokens));
        }
        self.mark_gone();
    }

    /// Compares the replicas' shares of failed requests and ejects outliers.
    pub(crate) fn compare(&self) {
        let (now, settings) = (self.now(), &self.settings);
        let snapshot = self.snapshot();
        let one = |entry: &Entry| {
            entry.member.with(|record| Compared {
                tally: record.standing.tally,
                available: entry.member.live.condition().takes_requests(),
                ejected: record.standing.ejected(),
            })
        };
        let compared: Vec<Compared> = snapshot.entries.iter().map(one).collect();
        let found = outliers(&compared, &settings.outliers);
        for (place, entry) in snapshot.entries.iter().enumerate() {
            entry.member.update(now, settings, |record| {
                let outlier = found.contains(&place);
                if outlier {
                    record.reason = "its requests fail far more often than others'".to_owned();
                }
                record.standing.compared(outlier, now, settings);
            });
        }
    }

    /// Updates the throughput estimates of all replicas.
    pub(crate) fn learn(&self) {
        let snapshot = self.snapshot();
        let answers = |member: &Arc<Member>| member.with(|record| record.answers.clone());
        let all: Vec<Answers> = snapshot
            .entries
            .iter()
            .map(|e| answers(&e.member))
            .collect();
        let mut classes: HashMap<&str, Class> = HashMap::new();
        let mut paces: HashMap<ReplicaId, Pace> = HashMap::new();
        for (entry, own) in snapshot.entries.iter().zip(&all) {
            let class = *classes.entry(entry.class()).or_insert_with(|| {
                let pairs = snapshot.entries.iter().zip(&all);
                let same = pairs.filter(|(other, _)| other.class() == entry.class());
                Class::learn(same.map(|(_, answers)| answers))
            });
            let pace = class.pace(own);
            if pace != entry.pace {
                paces.insert(entry.id, pace);
            }
        }
        if paces.is_empty() {
            return;
        }
        self.change(|snapshot, _| {
            for entry in &mut snapshot.entries {
                entry.pace = paces.get(&entry.id).copied().unwrap_or(entry.pace);
            }
        });
    }

    /// Whether each replica has had a health check and a query of its models.
    pub(crate) fn all_checked(&self) -> bool {
        let checked = |entry: &Entry| {
            entry.member.asked.load(Ordering::Relaxed)
                && entry.member.with(|record| record.standing.checked())
        };
        self.found.load(Ordering::Relaxed) && self.snapshot().entries.iter().all(checked)
    }

    pub(crate) fn any_takes_requests(&self) -> bool {
        let takes = |entry: &Entry| entry.member.live.condition().takes_requests();
        self.snapshot().entries.iter().any(takes)
    }

    /// Running mean of the uncached tokens of this gateway's prompts.
    pub(crate) fn usual_tokens(&self) -> f32 {
        f32::from_bits(self.mean_uncached.load(Ordering::Relaxed))
    }

    /// Updates the mean of uncached tokens. A race may lose an update, which is harmless for a
    /// mean.
    pub(crate) fn saw_prompt(&self, uncached: f32) {
        let mean = self.usual_tokens();
        let mean = mean + MEAN_WEIGHT * (uncached.clamp(0.0, 1e6) - mean);
        self.mean_uncached.store(mean.to_bits(), Ordering::Relaxed);
    }
}
