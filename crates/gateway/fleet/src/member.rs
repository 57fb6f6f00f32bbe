//! State of a replica in the fleet: lock-free counters for views, and a record behind a lock.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use penstock_http::{one_line, shortened};
use penstock_routing::Condition;
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::Settings;
use crate::eligibility::Standing;
use crate::live::Live;
use crate::load::Polled;
use crate::outcome::Outcome;
use crate::process::Process;
use crate::prompts::Prompts;
use crate::rate::Rate;
use crate::throughput::Answers;

/// Maximum number of shown characters of an error.
const MOST_SHOWN: usize = 200;

#[derive(Debug)]
pub(crate) struct Member {
    /// `http://host:port`.
    pub base: Arc<str>,
    pub live: Live,
    /// The last load that the replica pushed.
    pub pushed: ArcSwapOption<Polled>,
    record: Mutex<Record>,
    /// Notified when a connection failed: triggers a health check.
    pub doubt: Notify,
    /// Notified when the replica accepts requests again: its models may have changed.
    pub back: Notify,
    /// Whether the replica's models have been queried.
    pub asked: AtomicBool,
    /// Number of times that the replica's process ended or was replaced.
    restarts: AtomicU32,
}

/// State behind a lock. The lock is held briefly at events, and never by a view.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub standing: Standing,
    pub answers: Answers,
    pub prompts: Prompts,
    pub process: Process,
    /// Reason for its ineligibility, for the log.
    pub reason: String,
    /// The last failed request or health check.
    pub last_error: Option<(Duration, Arc<str>)>,
    pub output: Rate,
}

impl Record {
    /// Records a failed request or health check. `message` may quote the replica.
    pub(crate) fn saw_error(&mut self, message: &str, now: Duration) {
        let line = one_line(&shortened(message, MOST_SHOWN));
        self.last_error = Some((now, line.into()));
    }

    /// Records the end of a request.
    pub(crate) fn saw_end(
        &mut self,
        outcome: Outcome,
        trial: bool,
        now: Duration,
        settings: &Settings,
    ) {
        if self.standing.saw_end(outcome, trial, now, settings) {
            self.reason = "requests failed one after another".to_owned();
        }
    }
}

impl Member {
    pub(crate) fn new(base: Arc<str>, cold: bool) -> Self {
        Self {
            base,
            live: Live::default(),
            pushed: ArcSwapOption::empty(),
            record: Mutex::new(Record {
                standing: Standing::new(cold),
                ..Record::default()
            }),
            doubt: Notify::new(),
            back: Notify::new(),
            asked: AtomicBool::new(false),
            restarts: AtomicU32::new(0),
        }
    }

    /// Accesses the record without evaluating the replica's condition again.
    pub(crate) fn with<T>(&self, with: impl FnOnce(&mut Record) -> T) -> T {
        with(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records an observation of the replica's process; `saw` returns whether the previous process
    /// has ended.
    pub(crate) fn saw_process(&self, saw: impl FnOnce(&mut Process) -> bool) {
        if self.with(|record| saw(&mut record.process)) {
            self.restarts.fetch_add(1, Ordering::Relaxed);
            let base = &self.base;
            info!("{base} has ended or restarted: its cached prefixes are forgotten");
        }
    }

    /// Number of times that the replica's process ended or was replaced.
    pub(crate) fn restarts(&self) -> u32 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Counts overdue prompts as computed. `wait`: whether the replica reports waiting requests.
    pub(crate) fn sweep(&self, now: Duration, wait: bool) {
        for tokens in self.with(|record| record.prompts.overdue(now, wait)) {
            self.live.prefilled(tokens);
        }
    }

    /// Changes the record and publishes the resulting condition.
    pub(crate) fn update<T>(
        &self,
        now: Duration,
        settings: &Settings,
        change: impl FnOnce(&mut Record) -> T,
    ) -> T {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut record);
        let next = record.standing.now(now, settings);
        let before = self.live.condition();
        if next.condition != before {
            self.live.set_condition(next.condition);
            self.say(before, next.condition, &record.reason);
        }
        self.live.offer_trial(next.trial);
        result
    }

    fn say(&self, before: Condition, after: Condition, reason: &str) {
        let base = &self.base;
        match (before.takes_requests(), after) {
            (true, Condition::Ready | Condition::Warming(_)) => {}
            (false, Condition::Ready | Condition::Warming(_)) => {
                self.back.notify_one();
                info!("{base} takes requests");
            }
            (_, Condition::Draining) => info!("{base} drains"),
            (_, Condition::Ejected) => warn!("{base} is ejected: {reason}"),
            (_, Condition::Unhealthy) => {
                warn!("{base} is unhealthy: {reason}");
            }
        }
    }
}
