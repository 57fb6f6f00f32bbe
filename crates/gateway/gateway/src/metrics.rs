//! Counters and histograms of the gateway, and its metrics page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_fleet::{BreakerState, Outcome, ReplicaStatus, View};
use penstock_http::{Histogram, Page, RequestCounts, Tracer, escaped, write_process};
use penstock_routing::{Condition, Replica};

use crate::exact::exact_page;
use crate::flow::flow_page;
use crate::hedge::hedge_page;
use crate::mirror::mirror_page;
use crate::pool::Pool;

/// Bounds of histogram buckets, in seconds.
const DECISION: &[f64] = &[
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1.0,
];
const FIRST_TOKEN: &[f64] = &[
    0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0,
];

#[derive(Debug)]
pub(crate) struct Metrics {
    /// Counts of all requests, by handler and outcome.
    pub(crate) http: Arc<RequestCounts>,
    /// Number of responses that ended, by pool and outcome.
    endings: Mutex<BTreeMap<(Arc<str>, &'static str), u64>>,
    decision: Histogram,
    first_token: Histogram,
    retries: AtomicU64,
    lost: AtomicU64,
    failover: Histogram,
    failovers_lost: AtomicU64,
    not_kept: AtomicU64,
    refused: AtomicU64,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        Self {
            http: Arc::default(),
            endings: Mutex::default(),
            decision: Histogram::new(DECISION),
            first_token: Histogram::new(FIRST_TOKEN),
            retries: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            failover: Histogram::new(FIRST_TOKEN),
            failovers_lost: AtomicU64::new(0),
            not_kept: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Records that a replica was chosen `after` the arrival of the request. `before` is the number
    /// of earlier attempts; above 0, the attempt counts as a retry.
    pub(crate) fn decided(&self, after: Duration, before: usize) {
        match before {
            0 => self.decision.observe(after.as_secs_f64()),
            _ => drop(self.retries.fetch_add(1, Ordering::Relaxed)),
        }
    }

    pub(crate) fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// Counts a failed attempt.
    pub(crate) fn lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the duration of a failover; `None`: no replica resumed the stream.
    pub(crate) fn failover(&self, after: Option<Duration>) {
        match after {
            Some(after) => self.failover.observe(after.as_secs_f64()),
            None => drop(self.failovers_lost.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Counts a stream that cannot be resumed, because there was no memory to keep its request.
    pub(crate) fn not_kept(&self) {
        self.not_kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was refused because too many were in flight.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, pool: &Arc<str>, outcome: Outcome) {
        let mut endings = self.endings.lock().unwrap_or_else(PoisonError::into_inner);
        *endings.entry((pool.clone(), outcome.word())).or_default() += 1;
    }

    /// The metrics page. `open` is the number of requests in flight. `stale` counts requests that
    /// were sent again because a kept-alive connection had been closed.
    pub(crate) fn page(
        &self,
        version: &str,
        pools: &[Arc<Pool>],
        (open, stale): (usize, u64),
        tracer: Option<&Tracer>,
    ) -> String {
        let labels = format!("version=\"{}\"", escaped(version));
        let mut page = Page::new(&labels);
        page.gauge("penstock:gateway_requests_open", "Requests inside.", open);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let name = "penstock:gateway_requests_refused_total";
        page.counter(
            name,
            "Requests refused because the gateway was full.",
            read(&self.refused),
        );
        let name = "penstock:gateway_attempts_lost_total";
        page.counter(
            name,
            "Attempts that a replica refused or broke off.",
            read(&self.lost),
        );
        let name = "penstock:gateway_stale_connections_total";
        page.counter(
            name,
            "Requests sent again because a kept connection had been closed by the replica.",
            stale,
        );
        let name = "penstock:gateway_retries_total";
        page.counter(
            name,
            "Requests sent to a further replica.",
            read(&self.retries),
        );
        let name = "penstock:gateway_failovers_lost_total";
        page.counter(
            name,
            "Streams that broke off and could not go on elsewhere.",
            read(&self.failovers_lost),
        );
        let name = "penstock:gateway_streams_not_kept_total";
        page.counter(
            name,
            "Streams that could not go on elsewhere, because --resume-bytes was used up.",
            read(&self.not_kept),
        );
        let name = "penstock:gateway_failover_seconds";
        let help = "From the end of a replica's stream to the first byte of its successor.";
        page.histogram(name, help, &self.failover);
        let name = "penstock:gateway_decision_seconds";
        let help = "From the arrival of a request to the choice of its replica.";
        page.histogram(name, help, &self.decision);
        let name = "penstock:gateway_time_to_first_token_seconds";
        let help = "From the arrival of a request to the first byte of its streamed answer.";
        page.histogram(name, help, &self.first_token);
        self.endings_page(&mut page);
        expected_page(&mut page, pools);
        replicas_page(&mut page, pools);
        flow_page(&mut page, pools);
        let hedging = pools
            .iter()
            .filter(|pool| pool.hedging.settings().is_some());
        let hedging = hedging.map(|pool| (&*pool.name, pool.hedging.counts()));
        hedge_page(&mut page, &hedging.collect::<Vec<_>>());
        let mirrors = pools.iter().filter(|pool| pool.mirror.settings().is_some());
        let mirrors = mirrors.map(|pool| (pool.name.clone(), pool.mirror.clone()));
        mirror_page(&mut page, &mirrors.collect::<Vec<_>>());
        exact_page(&mut page, pools);
        if let Some(tracer) = tracer {
            tracer.render(&mut page);
        }
        self.http.render(&mut page.out);
        write_process(&mut page.out);
        page.out
    }

    fn endings_page(&self, page: &mut Page<'_>) {
        let name = "penstock:gateway_requests_total";
        page.head(name, "counter", "Answers by pool and outcome.");
        let endings = self.endings.lock().unwrap_or_else(PoisonError::into_inner);
        for ((pool, outcome), count) in endings.iter() {
            let pool = escaped(pool);
            page.sample(
                name,
                &format!(",pool=\"{pool}\",outcome=\"{outcome}\""),
                count,
            );
        }
    }
}

fn expected_page(page: &mut Page<'_>, pools: &[Arc<Pool>]) {
    type Count = fn((u64, u64)) -> u64;
    let counters: [(&str, &str, Count); 2] = [
        (
            "penstock:gateway_prompt_tokens_total",
            "Prompt tokens of requests that were routed, as far as their number is known.",
            |(prompt, _)| prompt,
        ),
        (
            "penstock:gateway_cached_tokens_expected_total",
            "Those of them that the chosen replica was believed to hold.",
            |(_, cached)| cached,
        ),
    ];
    for (name, help, count) in counters {
        page.head(name, "counter", help);
        for pool in pools {
            let labels = format!(",pool=\"{}\"", escaped(&pool.name));
            page.sample(name, &labels, count(pool.expected.counts()));
        }
    }
}

fn replicas_page(page: &mut Page<'_>, pools: &[Arc<Pool>]) {
    let views: Vec<_> = pools
        .iter()
        .map(|pool| (&pool.name, pool.fleet.view()))
        .collect();
    type Value = fn(&Replica) -> f32;
    let gauges: [(&str, &str, Value); 5] = [
        ("ready", "1: it takes requests.", |one| takes(one.condition)),
        ("waiting", "Requests that wait there.", |one| one.waiting),
        ("running", "Requests that run there.", |one| one.running),
        ("kv_use", "Share of its KV blocks in use.", |one| one.kv_use),
        ("backlog_tokens", "Prompt tokens to be computed.", |one| {
            one.backlog_tokens
        }),
    ];
    for (word, help, value) in gauges {
        let name = format!("penstock:gateway_replica_{word}");
        page.head(&name, "gauge", help);
        for (pool, view) in &views {
            for replica in &view.replicas {
                page.sample(&name, &replica_labels(pool, replica), value(replica));
            }
        }
    }
    ages_page(page, &views);
    statuses_page(page, pools);
}

/// Number of requests that this gateway has sent to each replica, and state of the circuit
/// breakers.
fn statuses_page(page: &mut Page<'_>, pools: &[Arc<Pool>]) {
    let of = |pool: &Arc<Pool>| (pool.name.clone(), pool.fleet.statuses());
    let statuses: Vec<_> = pools.iter().map(of).collect();
    type Value = fn(&ReplicaStatus) -> u64;
    let metrics: [(&str, &str, &str, Value); 4] = [
        (
            "picks_total",
            "counter",
            "Requests that this gateway sent there.",
            |one| one.picks,
        ),
        (
            "errors_total",
            "counter",
            "Those of them that it failed or refused.",
            |one| one.errors,
        ),
        (
            "in_flight",
            "gauge",
            "Those of them that have not ended.",
            |one| one.in_flight.into(),
        ),
        (
            "breaker_open",
            "gauge",
            "1: its circuit breaker is open or half open.",
            |one| u64::from(one.breaker != BreakerState::Closed),
        ),
    ];
    for (word, kind, help, value) in metrics {
        let name = format!("penstock:gateway_replica_{word}");
        page.head(&name, kind, help);
        for (pool, replicas) in &statuses {
            for one in replicas {
                page.sample(&name, &labels(pool, &one.address), value(one));
            }
        }
    }
}

/// Age of each replica's last report.
fn ages_page(page: &mut Page<'_>, views: &[(&Arc<str>, View)]) {
    let name = "penstock:gateway_replica_report_age_seconds";
    page.head(name, "gauge", "Age of its last report, polled or pushed.");
    for (pool, view) in views {
        for (place, replica) in view.replicas.iter().enumerate() {
            if let Some(age) = view.report_age(place) {
                page.sample(name, &replica_labels(pool, replica), age.as_secs_f64());
            }
        }
    }
}

fn replica_labels(pool: &str, replica: &Replica) -> String {
    labels(pool, &replica.address)
}

fn labels(pool: &str, address: &str) -> String {
    let (pool, address) = (escaped(pool), escaped(address));
    format!(",pool=\"{pool}\",replica=\"{address}\"")
}

fn takes(condition: Condition) -> f32 {
    f32::from(u8::from(condition.takes_requests()))
}
