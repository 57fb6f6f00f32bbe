//! `session`: session affinity; the home replica of the request's session scores 1, others 0.

use super::{Candidate, Score};
use crate::Request;
use crate::home::home;

#[derive(Debug)]
pub(crate) struct Session;

impl Score for Session {
    fn name(&self) -> &'static str {
        "session"
    }

    /// All candidates score 0 if the request has no session.
    fn score(&self, request: &Request<'_>, candidates: &[Candidate<'_>]) -> Vec<f32> {
        let Some(session) = request.session else {
            return vec![0.0; candidates.len()];
        };
        let home = home(session, candidates.iter().map(Candidate::address));
        let score = |at| f32::from(u8::from(Some(at) == home));
        (0..candidates.len()).map(score).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Replica, ReplicaId};

    fn home(session: u64, replicas: &[Replica]) -> ReplicaId {
        let candidate = |(place, replica)| Candidate::new(replica, place, 0.0);
        let candidates: Vec<_> = replicas.iter().enumerate().map(candidate).collect();
        let request = Request {
            session: Some(session),
            ..Request::default()
        };
        let scores = Session.score(&request, &candidates);
        assert_eq!(scores.iter().sum::<f32>(), 1.0);
        replicas[scores.iter().position(|s| *s == 1.0).unwrap()].id
    }

    #[test]
    fn only_the_sessions_of_a_lost_replica_move() {
        let all: Vec<_> = (0..5)
            .map(|n| Replica::new(ReplicaId(n), format!("r{n}")))
            .collect();
        let fewer: Vec<_> = all.iter().filter(|r| r.id.0 != 3).cloned().collect();
        let mut counts = [0; 5];
        for session in 0..1000 {
            let before = home(session, &all);
            counts[before.0 as usize] += 1;
            if before.0 != 3 {
                assert_eq!(home(session, &fewer), before);
            }
        }
        assert!(counts.iter().all(|n| (140..260).contains(n)), "{counts:?}");
    }
}
