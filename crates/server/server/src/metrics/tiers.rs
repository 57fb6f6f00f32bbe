//! Metrics of the KV tiers behind the pool. A metric with an equivalent in vLLM 0.32 or LMCache is
//! also exported under that name, so that existing dashboards work. docs/kv-tiers.md defines the
//! counts.

use penstock_http::{Page, escaped, write_histogram};
use serde::Deserialize;

/// The part of a TIERS document that the page needs (written by `penstock.engine.report`).
#[derive(Deserialize)]
struct TierReport {
    lookup_tokens: u64,
    decisions: Decisions,
    pinned_blocks: u32,
    tiers: Vec<TierStats>,
}

#[derive(Deserialize)]
struct Decisions {
    load: u64,
    compute: u64,
    both: u64,
}

#[derive(Deserialize)]
struct TierStats {
    name: String,
    kind: TierKind,
    state: TierState,
    used_bytes: u64,
    capacity_bytes: Option<u64>,
    hits: u64,
    misses: u64,
    hit_tokens: u64,
    loaded_bytes: u64,
    stored_bytes: u64,
    errors: u64,
    evicted_chunks: u64,
    quarantined_chunks: u64,
    dropped_stores: u64,
    loads: Durations,
    stores: Durations,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum TierKind {
    Ram,
    Disk,
    Remote,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum TierState {
    Serving,
    Skipped,
    Trying,
}

/// A histogram of transfer times with non-cumulative buckets; the last bucket is above all bounds.
#[derive(Deserialize, Default)]
struct Durations {
    seconds: f64,
    buckets: [u64; DURATION_BOUNDS.len() + 1],
}

const DURATION_BOUNDS: [f64; 16] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

type Number = fn(&TierStats) -> u64;
type Times = fn(&TierStats) -> &Durations;

const COUNTERS: [(&str, &str, Number); 9] = [
    ("hits", "Chunks that a tier was asked for and had.", |t| {
        t.hits
    }),
    (
        "misses",
        "Chunks that a tier was asked for and had not.",
        |t| t.misses,
    ),
    ("hit_tokens", "Prompt tokens that came from a tier.", |t| {
        t.hit_tokens
    }),
    ("loaded_bytes", "Bytes loaded from a tier.", |t| {
        t.loaded_bytes
    }),
    ("stored_bytes", "Bytes stored to a tier.", |t| {
        t.stored_bytes
    }),
    ("errors", "Transfers that failed.", |t| t.errors),
    ("evicted_chunks", "Chunks that made room for others.", |t| {
        t.evicted_chunks
    }),
    (
        "quarantined_chunks",
        "Damaged chunks that were put aside.",
        |t| t.quarantined_chunks,
    ),
    (
        "dropped_stores",
        "Stores left out: tier behind or budget spent.",
        |t| t.dropped_stores,
    ),
];

const GAUGES: [(&str, &str, Number); 3] = [
    ("used_bytes", "Bytes that a tier holds.", |t| t.used_bytes),
    (
        "capacity_bytes",
        "Bytes that a tier may hold; 0 is no bound.",
        |t| t.capacity_bytes.unwrap_or(0),
    ),
    (
        "skipped",
        "1 while a tier that failed or stalled is left alone.",
        |t| u64::from(t.state != TierState::Serving),
    ),
];

/// Renders the tier metrics. Queried and hit tokens are on every page, as in vLLM; the rest only
/// with tiers.
pub(super) fn render(page: &mut Page<'_>, report: Option<&str>) {
    // Cannot fail: an engine of the same wire version writes exactly this document.
    let report = report.and_then(|json| serde_json::from_str::<TierReport>(json).ok());
    let report = report.as_ref();
    let tiers = report.map_or(&[][..], |report| &report.tiers);
    let asked = report.map_or(0, |report| report.lookup_tokens);
    let hits = sum(tiers, |_| true, |tier| tier.hit_tokens);
    page.counter(
        "vllm:external_prefix_cache_queries_total",
        "Prompt tokens asked of tiers behind the pool.",
        asked,
    );
    page.counter(
        "vllm:external_prefix_cache_hits_total",
        "Prompt tokens from tiers behind the pool.",
        hits,
    );
    if let Some(report) = report.filter(|report| !report.tiers.is_empty()) {
        by_tier(page, tiers);
        whole(page, report);
        lmcache(page, tiers, (asked, hits));
    }
}

fn sum(tiers: &[TierStats], which: fn(&TierStats) -> bool, number: Number) -> u64 {
    let numbers = tiers.iter().filter(|tier| which(tier)).map(number);
    numbers.fold(0, u64::wrapping_add)
}

fn label(tier: &TierStats) -> String {
    format!(",tier=\"{}\"", escaped(&tier.name))
}

fn by_tier(page: &mut Page<'_>, tiers: &[TierStats]) {
    for (name, help, number) in COUNTERS {
        each(
            page,
            &format!("penstock:kv_tier_{name}_total"),
            ("counter", help),
            tiers,
            number,
        );
    }
    for (name, help, number) in GAUGES {
        each(
            page,
            &format!("penstock:kv_tier_{name}"),
            ("gauge", help),
            tiers,
            number,
        );
    }
    let times: [(&str, &str, Times); 2] = [
        ("penstock:kv_tier_load_seconds", "Loads from a tier.", |t| {
            &t.loads
        }),
        ("penstock:kv_tier_store_seconds", "Stores to a tier.", |t| {
            &t.stores
        }),
    ];
    for (name, help, durations) in times {
        page.head(name, "histogram", help);
        for tier in tiers {
            let labels = format!("{}{}", page.labels(), label(tier));
            histogram(page, (name, &labels), durations(tier));
        }
    }
}

fn each(
    page: &mut Page<'_>,
    name: &str,
    (kind, help): (&str, &str),
    tiers: &[TierStats],
    number: Number,
) {
    page.head(name, kind, help);
    for tier in tiers {
        page.sample(name, &label(tier), number(tier));
    }
}

fn histogram(page: &mut Page<'_>, name_and_labels: (&str, &str), durations: &Durations) {
    let counts = durations.buckets.iter().copied();
    let bounds = &DURATION_BOUNDS;
    write_histogram(
        &mut page.out,
        name_and_labels,
        bounds,
        counts,
        durations.seconds,
    );
}

fn whole(page: &mut Page<'_>, report: &TierReport) {
    let name = "penstock:kv_tier_decisions_total";
    let help = "Requests whose prefix a tier had, by what was done about it.";
    page.head(name, "counter", help);
    let decisions = &report.decisions;
    for (decision, count) in [
        ("load", decisions.load),
        ("compute", decisions.compute),
        ("both", decisions.both),
    ] {
        page.sample(name, &format!(",decision=\"{decision}\""), count);
    }
    page.gauge(
        "penstock:kv_pinned_blocks",
        "Blocks that eviction passes over.",
        report.pinned_blocks,
    );
}

fn lmcache(page: &mut Page<'_>, tiers: &[TierStats], (asked, hits): (u64, u64)) {
    let is_ram = |tier: &TierStats| tier.kind == TierKind::Ram;
    let is_disk = |tier: &TierStats| tier.kind == TierKind::Disk;
    let is_remote = |tier: &TierStats| tier.kind == TierKind::Remote;
    let read = sum(tiers, is_remote, |tier| tier.loaded_bytes);
    let written = sum(tiers, is_remote, |tier| tier.stored_bytes);
    for (name, help, value) in [
        ("num_requested_tokens", "Tokens asked of the tiers.", asked),
        ("num_hit_tokens", "Tokens from the tiers.", hits),
        (
            "num_remote_read_bytes",
            "Bytes loaded from remote tiers.",
            read,
        ),
        (
            "num_remote_write_bytes",
            "Bytes stored to remote tiers.",
            written,
        ),
    ] {
        page.counter(&format!("lmcache:{name}_total"), help, value);
    }
    let used = |which| sum(tiers, which, |tier| tier.used_bytes);
    for (name, help, value) in [
        ("local_cache_usage", "Bytes in the RAM tier.", used(is_ram)),
        ("local_storage_usage", "Bytes in disk tiers.", used(is_disk)),
        (
            "remote_cache_usage",
            "Bytes in remote tiers.",
            used(is_remote),
        ),
    ] {
        page.gauge(&format!("lmcache:{name}"), help, value);
    }
    let times: [(&str, &str, Times); 2] = [
        (
            "lmcache:time_to_retrieve",
            "Loads from any tier, in seconds.",
            |t| &t.loads,
        ),
        (
            "lmcache:time_to_store",
            "Stores to any tier, in seconds.",
            |t| &t.stores,
        ),
    ];
    for (name, help, durations) in times {
        page.head(name, "histogram", help);
        let all = together(tiers.iter().map(durations));
        histogram(page, (name, page.labels()), &all);
    }
}

fn together<'a>(many: impl Iterator<Item = &'a Durations>) -> Durations {
    many.fold(Durations::default(), |mut all, one| {
        all.seconds += one.seconds;
        for (sum, count) in all.buckets.iter_mut().zip(one.buckets) {
            *sum = sum.wrapping_add(count);
        }
        all
    })
}
