//! Renders a decision as text, for operators: in headers, logs, traces and web pages.
//!
//! `10.0.0.1:8000: shortest queue (2 running, 0 waiting) of 3; 1 left out: unhealthy`

use std::fmt;

use crate::{Decision, Picker, Ranked, Removed};

impl fmt::Display for Decision {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first();
        write!(out, "{}: {} (", first.address, reason(self))?;
        if first.cached_tokens >= 1.0 {
            let (cached, all) = (first.cached_tokens, self.prompt_tokens);
            write!(out, "{cached:.0} of {all:.0} prompt tokens cached, ")?;
        }
        let load = &first.load;
        write!(
            out,
            "{:.0} running, {:.0} waiting",
            load.running, load.waiting
        )?;
        if load.kv_use >= 0.005 {
            write!(out, ", KV {:.0}%", load.kv_use * 100.0)?;
        }
        write!(out, ")")?;
        if self.ranked.len() > 1 {
            write!(out, " of {}", self.ranked.len())?;
        }
        left_out(&self.removed, out)
    }
}

/// Reason why the first replica was picked.
fn reason(decision: &Decision) -> String {
    match decision.picker {
        _ if decision.ranked.len() == 1 && decision.removed.is_empty() => "the only replica".into(),
        _ if decision.ranked.len() == 1 => "the only one left".into(),
        Picker::RoundRobin => "its turn".into(),
        Picker::Random => "drawn at random".into(),
        Picker::WeightedRandom => "drawn at random, by score".into(),
        Picker::MaxScore => best(&decision.ranked),
    }
}

/// The scorer in which the first replica leads all others with the largest margin over the second.
fn best(ranked: &[Ranked]) -> String {
    let (first, second) = (&ranked[0], &ranked[1]);
    if first.total <= second.total {
        return "as good as the next, drawn at random".to_owned();
    }
    let leads = |at: usize| {
        let score = |one: &Ranked| one.parts[at].1;
        ranked.iter().all(|one| score(one) <= score(first))
    };
    let gain = |at: usize| (first.parts[at].1 - second.parts[at].1) * first.parts[at].2;
    let scorers = (0..first.parts.len()).filter(|at| leads(*at) && gain(*at) > 0.0);
    let decisive = scorers.max_by(|one, other| gain(*one).total_cmp(&gain(*other)));
    match decisive {
        Some(at) => superlative(first.parts[at].0).to_owned(),
        None => {
            let names: Vec<&str> = first.parts.iter().map(|part| part.0).collect();
            format!("best sum of {}", names.join(", "))
        }
    }
}

/// The reason in words if this scorer decided: "shortest queue", for example.
fn superlative(scorer: &str) -> &str {
    match scorer {
        "queue" => "shortest queue",
        "running" => "fewest requests",
        "kv-use" => "most free KV cache",
        "prefix" => "most of the prompt cached",
        "session" => "session affinity",
        "adapter" => "adapter loaded",
        "criticality" => "best load for the request's priority",
        "ttft" => "shortest expected time to the first token",
        "tpot" => "shortest expected time per token",
        "slo" => "most headroom below the latency targets",
        "cost" => "least expected work",
        other => other,
    }
}

/// The number of replicas that were filtered out, and why.
fn left_out(removed: &[Removed], out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut causes: Vec<(&str, usize)> = Vec::new();
    for one in removed {
        let cause = cause(one);
        match causes.iter_mut().find(|(name, _)| *name == cause) {
            Some((_, count)) => *count += 1,
            None => causes.push((cause, 1)),
        }
    }
    if causes.is_empty() {
        return Ok(());
    }
    write!(out, "; {} left out: ", removed.len())?;
    for (at, (cause, count)) in causes.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        match causes.len() {
            1 => write!(out, "{cause}")?,
            _ => write!(out, "{comma}{count} {cause}")?,
        }
    }
    Ok(())
}

fn cause(removed: &Removed) -> &str {
    match removed.filter {
        "condition" => removed.condition.word(),
        "subset" => "without this model or outside the subset",
        "tried" => "tried before",
        "warming" => "starting slowly",
        "waiting-below" => "queue too long",
        "kv-below" => "KV cache too full",
        "adapter-loaded" => "adapter not loaded",
        "label" => "other label",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters::FILTERS;
    use crate::{Condition, Profile, ProfileSpec, Replica, ReplicaId, Request, SCORERS, pick};

    fn replica(id: u32, waiting: f32, running: f32) -> Replica {
        Replica {
            waiting,
            running,
            ..Replica::new(ReplicaId(id), format!("r{id}:1"))
        }
    }

    fn said(profile: &str, request: &Request<'_>, replicas: &[Replica]) -> String {
        let spec: ProfileSpec = serde_json::from_str(profile).unwrap();
        let profile = Profile::new(spec).unwrap();
        pick(&profile, request, replicas).unwrap().to_string()
    }

    const QUEUE: &str = r#"{"scorers": [{"name": "queue"}]}"#;

    #[test]
    fn the_decisive_scorer_and_what_was_left_out_are_named() {
        let mut all = [
            replica(1, 3.0, 1.0),
            replica(2, 0.0, 2.0),
            replica(3, 5.0, 0.0),
        ];
        let plain = Request::default();
        assert_eq!(
            said(QUEUE, &plain, &all),
            "r2:1: shortest queue (2 running, 0 waiting) of 3"
        );
        all[0].condition = Condition::Unhealthy;
        assert_eq!(
            said(QUEUE, &plain, &all),
            "r2:1: shortest queue (2 running, 0 waiting) of 2; 1 left out: unhealthy"
        );
        let tried = Request {
            tried: &[ReplicaId(3)],
            ..plain
        };
        assert_eq!(
            said(QUEUE, &tried, &all),
            "r2:1: the only one left (2 running, 0 waiting); \
             2 left out: 1 unhealthy, 1 tried before"
        );
    }

    #[test]
    fn one_replica_has_no_rivals() {
        let mut one = replica(1, 0.0, 0.0);
        one.kv_use = 0.25;
        assert_eq!(
            said("{}", &Request::default(), &[one]),
            "r1:1: the only replica (0 running, 0 waiting, KV 25%)"
        );
    }

    #[test]
    fn cached_tokens_are_shown_beside_the_prompt_s() {
        let request = Request {
            prompt_tokens: 700.0,
            cached_tokens: &[0.0, 512.0],
            ..Request::default()
        };
        let all = [replica(1, 0.0, 0.0), replica(2, 0.0, 0.0)];
        let cached = "(512 of 700 prompt tokens cached, 0 running, 0 waiting) of 2";
        assert_eq!(
            said("{}", &request, &all),
            format!("r2:1: least expected work {cached}")
        );
        let prefix = r#"{"scorers": [{"name": "queue"}, {"name": "prefix"}]}"#;
        assert_eq!(
            said(prefix, &request, &all),
            format!("r2:1: most of the prompt cached {cached}")
        );
    }

    #[test]
    fn what_the_scores_did_not_decide_is_not_said_of_them() {
        let all = [replica(1, 0.0, 0.0), replica(2, 0.0, 0.0)];
        let plain = Request::default();
        assert!(said(QUEUE, &plain, &all).contains("as good as the next, drawn at random"));
        for (picker, words) in [
            ("round-robin", "its turn"),
            ("random", "drawn at random ("),
            ("weighted-random", "drawn at random, by score"),
        ] {
            let profile = format!(r#"{{"picker": "{picker}"}}"#);
            assert!(said(&profile, &plain, &all).contains(words), "{picker}");
        }
        // wins by the sum, though each scorer has another favourite
        let mut all = [
            replica(1, 0.0, 0.0),
            replica(2, 4.0, 0.0),
            replica(3, 1.0, 0.0),
        ];
        (all[0].kv_use, all[1].kv_use, all[2].kv_use) = (0.9, 0.0, 0.1);
        let both = r#"{"scorers": [{"name": "queue"}, {"name": "kv-use"}]}"#;
        assert_eq!(
            said(both, &plain, &all),
            "r3:1: best sum of queue, kv-use (0 running, 1 waiting, KV 10%) of 3"
        );
    }

    #[test]
    fn every_scorer_and_filter_has_words() {
        for name in SCORERS {
            assert_ne!(superlative(name), name);
        }
        let removed = |filter| Removed {
            replica: ReplicaId(1),
            filter,
            condition: Condition::Draining,
        };
        for name in FILTERS.into_iter().chain(["subset", "tried", "warming"]) {
            let removed = removed(name);
            assert_ne!(cause(&removed), name);
        }
        assert_eq!(cause(&removed("condition")), "draining");
    }
}
