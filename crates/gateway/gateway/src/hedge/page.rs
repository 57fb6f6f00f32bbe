//! Hedging metrics.

use penstock_http::{Page, escaped};

use crate::hedge::state::WORDS;

/// Number of outcomes at the start of `WORDS`. The remaining words are reasons for omitting the
/// second attempt.
const ENDS: usize = 2;

/// Adds the counters of pools that hedge, each with its pool's name.
pub(crate) fn hedge_page(page: &mut Page<'_>, pools: &[(&str, [u64; WORDS.len()])]) {
    if pools.is_empty() {
        return;
    }
    let tables = [
        (
            "penstock:gateway_hedges_total",
            "Requests that two replicas had at once, by outcome.",
            "outcome",
            0..ENDS,
        ),
        (
            "penstock:gateway_hedges_refused_total",
            "Requests that waited for long without a second replica, by reason.",
            "reason",
            ENDS..WORDS.len(),
        ),
    ];
    for (name, help, label, range) in tables {
        page.head(name, "counter", help);
        for (pool, counts) in pools {
            for at in range.clone() {
                let (pool, word) = (escaped(pool), WORDS[at]);
                let labels = format!(",pool=\"{pool}\",{label}=\"{word}\"");
                page.sample(name, &labels, counts[at]);
            }
        }
    }
}
