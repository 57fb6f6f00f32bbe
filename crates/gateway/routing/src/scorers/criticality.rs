//! `criticality`: steers critical requests (priority above 0) to the replica with the fewest
//! requests, and sheddable ones (below 0) away from it, to keep room for critical ones. Standard
//! requests (0) score 1 everywhere.

use super::{Candidate, Score, least_is_best};
use crate::Request;

#[derive(Debug)]
pub(crate) struct Criticality;

impl Score for Criticality {
    fn name(&self) -> &'static str {
        "criticality"
    }

    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let load = |one: &Candidate<'_>| one.load.waiting + one.load.running;
        let loads: Vec<f32> = candidates.iter().map(load).collect();
        let least = loads.iter().copied().fold(f32::INFINITY, f32::min);
        let level = loads.iter().all(|load| *load <= least);
        if request.priority > 0 {
            return least_is_best(&loads);
        }
        if request.priority == 0 || level {
            return vec![1.0; candidates.len()];
        }
        let above = loads.iter().map(|load| f32::from(u8::from(*load > least)));
        above.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Replica, ReplicaId};

    fn scores(priority: i32, running: &[f32]) -> Vec<f32> {
        let replica = |(id, running): (u32, &f32)| Replica {
            running: *running,
            ..Replica::new(ReplicaId(id), format!("r{id}:1"))
        };
        let replicas: Vec<Replica> = (0..).zip(running).map(replica).collect();
        let one = |(place, replica)| Candidate::new(replica, place, 0.0);
        let candidates: Vec<_> = replicas.iter().enumerate().map(one).collect();
        let request = Request {
            priority,
            ..Request::default()
        };
        Criticality.score(&request, &candidates)
    }

    #[test]
    fn the_least_loaded_replica_is_kept_for_critical_requests() {
        let running = [4.0, 0.0, 2.0];
        assert_eq!(scores(3, &running), [0.0, 1.0, 0.5]);
        assert_eq!(scores(0, &running), [1.0, 1.0, 1.0]);
        assert_eq!(scores(-1, &running), [1.0, 0.0, 1.0]);
        assert_eq!(scores(-1, &[2.0, 2.0]), [1.0, 1.0]);
        assert_eq!(scores(-1, &[2.0]), [1.0]);
    }
}
