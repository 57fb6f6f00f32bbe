//! Metrics of exact prefix routing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_http::{Page, escaped};

use super::followers::Follower;
use crate::pool::Pool;

/// Adds the state and counters of the KV event subscriptions, and the outcomes of tokenization.
pub(crate) fn exact_page(page: &mut Page<'_>, pools: &[Arc<Pool>]) {
    let exact = || {
        pools
            .iter()
            .filter_map(|pool| Some((&pool.name, pool.exact.as_ref()?)))
    };
    if exact().next().is_none() {
        return;
    }
    type Value = fn(&Follower, usize) -> u64;
    let values: [(&str, &str, &str, Value); 6] = [
        (
            "connected",
            "gauge",
            "1: its events are followed.",
            |one, _| u64::from(one.live()),
        ),
        (
            "complete",
            "gauge",
            "1: all of them were seen.",
            |one, _| u64::from(one.complete()),
        ),
        (
            "blocks",
            "gauge",
            "Blocks that it says it holds.",
            |_, blocks| blocks as u64,
        ),
        (
            "batches_total",
            "counter",
            "Batches of events.",
            |one, _| read(&one.batches),
        ),
        (
            "gaps_total",
            "counter",
            "Gaps between batches.",
            |one, _| read(&one.gaps),
        ),
        (
            "resets_total",
            "counter",
            "Times that all was forgotten.",
            |one, _| read(&one.resets),
        ),
    ];
    for (word, kind, help, value) in values {
        let name = format!("penstock:gateway_kv_events_{word}");
        page.head(&name, kind, help);
        for (pool, exact) in exact() {
            for (follower, blocks) in exact.followers() {
                let (pool, address) = (escaped(pool), escaped(&follower.address));
                let labels = format!(",pool=\"{pool}\",replica=\"{address}\"");
                page.sample(&name, &labels, value(&follower, blocks));
            }
        }
    }
    let name = "penstock:gateway_prompts_tokenized_total";
    page.head(name, "counter", "Prompts by what became of their tokens.");
    for (pool, exact) in exact() {
        let counts = exact.token_counts();
        let outcomes = [
            ("tokenized", &counts.tokenized),
            ("given_up", &counts.given_up),
            ("other", &counts.other),
        ];
        for (outcome, count) in outcomes {
            let labels = format!(",pool=\"{}\",outcome=\"{outcome}\"", escaped(pool));
            page.sample(name, &labels, read(count));
        }
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
