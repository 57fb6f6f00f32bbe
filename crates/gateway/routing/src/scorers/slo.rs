//! `slo`: headroom below the latency targets of the request, or of the profile if it has none.
//!
//! Headroom is 1 - predicted / target; the smaller headroom of TTFT and TPOT counts. A replica that
//! meets both targets scores 0.5 plus half its headroom. A replica that misses one scores half of
//! target / predicted. Thus replicas that meet the targets rank above all others; if all miss them,
//! the replica with the smallest violation ranks first. Without targets all replicas score 1.

use super::predicted::{tpot, ttft};
use super::{Candidate, Score};
use crate::{Request, Slo};

#[derive(Debug)]
pub(crate) struct Headroom {
    /// Default targets, for requests without their own.
    pub(crate) usual: Slo,
}

impl Score for Headroom {
    fn name(&self) -> &'static str {
        "slo"
    }

    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let slo = request.slo.or(self.usual);
        let one = |one: &Candidate<'_>| {
            let late = [
                slo.ttft_s.map(|target| over(ttft(request, one), target)),
                slo.tpot_s.map(|target| over(tpot(one), target)),
            ];
            let late = late.into_iter().flatten().fold(0.0, f32::max);
            match late <= 1.0 {
                true => 1.0 - 0.5 * late,
                false => 0.5 / late,
            }
        };
        candidates.iter().map(one).collect()
    }

    fn needs_prefixes(&self) -> bool {
        true
    }
}

/// Predicted time divided by the target; above 1, the target is missed. A target that is not
/// positive counts as met (0).
fn over(predicted: f32, target: f32) -> f32 {
    match target > 0.0 {
        true => (predicted / target).max(0.0),
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pace, Replica, ReplicaId};

    /// Scores of replicas with these (backlog tokens, running sequences). They prefill 1,000
    /// tokens/s; a decode step takes 10 ms plus 1 ms for each further sequence.
    fn scores(replicas: &[(f32, f32)], slo: Slo, usual: Slo) -> Vec<f32> {
        let replica = |(id, (backlog, running)): (u32, &(f32, f32))| Replica {
            backlog_tokens: *backlog,
            running: *running,
            pace: Pace {
                prefill_tokens_per_s: 1000.0,
                decode_s: 0.01,
                decode_s_per_sequence: 0.001,
            },
            ..Replica::new(ReplicaId(id), format!("r{id}:1"))
        };
        let replicas: Vec<Replica> = (0..).zip(replicas).map(replica).collect();
        let one = |(place, replica)| Candidate::new(replica, place, 0.0);
        let candidates: Vec<_> = replicas.iter().enumerate().map(one).collect();
        let request = Request {
            prompt_tokens: 990.0,
            slo,
            ..Request::default()
        };
        let scores = Headroom { usual }.score(&request, &candidates);
        scores.iter().map(|one| (one * 1e4).round() / 1e4).collect()
    }

    fn slo(ttft_s: Option<f32>, tpot_s: Option<f32>) -> Slo {
        Slo { ttft_s, tpot_s }
    }

    #[test]
    fn headroom_is_that_of_the_tighter_target() {
        // TTFT 1, 3 and 1.04 s, TPOT 10, 10 and 50 ms
        let replicas = [(0.0, 0.0), (2000.0, 0.0), (0.0, 40.0)];
        let none = Slo::default();
        assert_eq!(scores(&replicas, none, none), [1.0, 1.0, 1.0]);
        let found = scores(&replicas, slo(Some(2.0), None), none);
        assert_eq!(found, [0.75, 0.3333, 0.74]);
        let found = scores(&replicas, slo(Some(2.0), Some(0.02)), none);
        assert_eq!(found, [0.75, 0.3333, 0.2]);
    }

    #[test]
    fn targets_of_the_profile_count_where_the_request_has_none() {
        let replicas = [(0.0, 0.0), (2000.0, 0.0)];
        let usual = slo(Some(2.0), Some(1.0));
        assert_eq!(scores(&replicas, Slo::default(), usual), [0.75, 0.3333]);
        let own = slo(Some(4.0), None);
        assert_eq!(scores(&replicas, own, usual), [0.875, 0.625]);
        let nonsense = slo(Some(f32::NAN), Some(-1.0));
        assert_eq!(scores(&replicas, nonsense, usual), [1.0, 1.0]);
    }
}
