//! Sanitised load: NaN, infinite and negative numbers in a replica's report are replaced before
//! scoring.

use crate::{Pace, Replica};

/// Upper bound for every reported number.
pub(crate) const MOST: f32 = 1e9;

/// Load of a replica, finite and within bounds. NaN becomes the worst value: a replica with invalid
/// metrics is chosen last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// In requests, as in [`Replica`]; from 0 to 1e9.
    pub waiting: f32,
    pub running: f32,
    /// Share of KV blocks in use, 0 to 1.
    pub kv_use: f32,
    pub backlog_tokens: f32,
    /// Rates are from 1 to 1e9 tokens per second, durations from 0 to 1e9 seconds.
    pub pace: Pace,
}

impl Load {
    pub(crate) fn of(replica: &Replica) -> Self {
        let pace = &replica.pace;
        let rate = pace.prefill_tokens_per_s;
        Self {
            waiting: amount(replica.waiting),
            running: amount(replica.running),
            kv_use: amount(replica.kv_use).min(1.0),
            backlog_tokens: amount(replica.backlog_tokens),
            pace: Pace {
                prefill_tokens_per_s: if rate.is_nan() {
                    1.0
                } else {
                    rate.clamp(1.0, MOST)
                },
                decode_s: amount(pace.decode_s),
                decode_s_per_sequence: amount(pace.decode_s_per_sequence),
            },
        }
    }
}

/// Limits a value to the range from 0 to [`MOST`]; NaN becomes [`MOST`].
pub(crate) fn amount(value: f32) -> f32 {
    if value.is_nan() {
        return MOST;
    }
    value.clamp(0.0, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplicaId;

    #[test]
    fn nonsense_counts_as_the_worst_and_less_than_nothing_as_nothing() {
        let nonsense = Replica {
            waiting: f32::NAN,
            running: -3.0,
            kv_use: f32::INFINITY,
            backlog_tokens: f32::NEG_INFINITY,
            pace: Pace {
                prefill_tokens_per_s: f32::NAN,
                decode_s: -0.0,
                decode_s_per_sequence: f32::INFINITY,
            },
            ..Replica::new(ReplicaId(1), "a:1")
        };
        let load = Load::of(&nonsense);
        assert_eq!((load.waiting, load.running), (MOST, 0.0));
        assert_eq!((load.kv_use, load.backlog_tokens), (1.0, 0.0));
        assert_eq!(load.pace.prefill_tokens_per_s, 1.0);
        assert_eq!(
            (load.pace.decode_s, load.pace.decode_s_per_sequence),
            (0.0, MOST)
        );
    }
}
