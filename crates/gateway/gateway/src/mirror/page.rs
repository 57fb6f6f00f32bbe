//! Mirroring metrics.

use std::sync::Arc;

use penstock_http::{Page, escaped};

use crate::mirror::Mirror;
use crate::mirror::counts::{OUTCOMES, REASONS};

/// Adds the mirroring metrics of pools, each with its pool's name.
pub(crate) fn mirror_page(page: &mut Page<'_>, mirrors: &[(Arc<str>, Arc<Mirror>)]) {
    if mirrors.is_empty() {
        return;
    }
    let label = |pool: &str| format!(",pool=\"{}\"", escaped(pool));
    let name = "penstock:gateway_mirrors_total";
    page.head(name, "counter", "Requests in the sample by outcome.");
    for (pool, mirror) in mirrors {
        for (outcome, count) in OUTCOMES.iter().zip(mirror.counts.all().0) {
            page.sample(
                name,
                &format!("{},outcome=\"{outcome}\"", label(pool)),
                count,
            );
        }
    }
    let name = "penstock:gateway_mirrors_dropped_total";
    page.head(
        name,
        "counter",
        "Requests that were not mirrored, by reason.",
    );
    for (pool, mirror) in mirrors {
        for (reason, count) in REASONS.iter().zip(mirror.counts.all().1) {
            page.sample(name, &format!("{},reason=\"{reason}\"", label(pool)), count);
        }
    }
    let name = "penstock:gateway_mirrors_open";
    page.head(name, "gauge", "Requests that are mirrored now.");
    for (pool, mirror) in mirrors {
        page.sample(name, &label(pool), mirror.taken().0);
    }
    let name = "penstock:gateway_mirrors_held_bytes";
    page.head(name, "gauge", "Bytes of theirs that are held.");
    for (pool, mirror) in mirrors {
        page.sample(name, &label(pool), mirror.taken().1);
    }
    histograms(page, mirrors);
}

fn histograms(page: &mut Page<'_>, mirrors: &[(Arc<str>, Arc<Mirror>)]) {
    let positions = [
        ("characters", "Characters before the first difference."),
        ("tokens", "Events of text before the first difference."),
    ];
    for (at, (unit, help)) in positions.into_iter().enumerate() {
        let name = format!("penstock:gateway_mirrors_equal_{unit}");
        page.head(&name, "histogram", help);
        for (pool, mirror) in mirrors {
            let labels = format!("{},pool=\"{}\"", page.labels(), escaped(pool));
            let counts = &mirror.counts;
            [&counts.characters, &counts.tokens][at].render(&mut page.out, &name, &labels);
        }
    }
    let times = [
        (
            "time_to_first_token_seconds",
            "To the first byte of a stream.",
        ),
        ("seconds", "To the end of answers that both sides finished."),
    ];
    for (at, (unit, help)) in times.into_iter().enumerate() {
        let name = format!("penstock:gateway_mirrors_{unit}");
        page.head(&name, "histogram", help);
        for (pool, mirror) in mirrors {
            let both = [&mirror.counts.first, &mirror.counts.whole][at];
            for (side, histogram) in ["primary", "mirror"].into_iter().zip(both) {
                let pool = escaped(pool);
                let labels = format!("{},pool=\"{pool}\",side=\"{side}\"", page.labels());
                histogram.render(&mut page.out, &name, &labels);
            }
        }
    }
}
