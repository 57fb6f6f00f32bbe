//! Flow control metrics.

use std::sync::Arc;

use penstock_http::{Page, escaped};

use crate::flow::control::{FlowCounts, REASONS};
use crate::pool::Pool;

pub(crate) fn flow_page(page: &mut Page<'_>, pools: &[Arc<Pool>]) {
    let of = |pool: &Arc<Pool>| {
        (
            format!(",pool=\"{}\"", escaped(&pool.name)),
            pool.flow.counts(),
        )
    };
    let all: Vec<(String, FlowCounts)> = pools.iter().map(of).collect();
    let name = "penstock:gateway_pool_saturated";
    page.head(name, "gauge", "1: no replica of the pool has room.");
    for (pool, counts) in &all {
        page.sample(name, pool, u8::from(counts.saturated));
    }
    let name = "penstock:gateway_queue_requests";
    page.head(
        name,
        "gauge",
        "Requests that wait for a replica with room, by priority.",
    );
    for (pool, counts) in &all {
        for (priority, requests, _) in &counts.bands {
            page.sample(name, &format!("{pool},priority=\"{priority}\""), requests);
        }
    }
    let name = "penstock:gateway_queue_bytes";
    page.head(name, "gauge", "Bytes of the bodies of requests that wait.");
    for (pool, counts) in &all {
        let bytes: usize = counts.bands.iter().map(|(_, _, bytes)| bytes).sum();
        page.sample(name, pool, bytes);
    }
    let name = "penstock:gateway_queue_wait_seconds";
    page.head(name, "summary", "Waits of the requests that went on.");
    for (pool, counts) in &all {
        page.sample(&format!("{name}_sum"), pool, counts.waited_s);
        page.sample(&format!("{name}_count"), pool, counts.released);
    }
    let name = "penstock:gateway_queue_refused_total";
    page.head(
        name,
        "counter",
        "Requests that left the queue or did not enter it, by reason.",
    );
    for (pool, counts) in &all {
        for (reason, count) in REASONS.iter().zip(counts.refused) {
            page.sample(name, &format!("{pool},reason=\"{reason}\""), count);
        }
    }
}
