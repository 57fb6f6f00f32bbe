//! `pick` against a plain implementation written from its description, in 64-bit arithmetic.

use crate::support::{Asked, asked, fleet};
use penstock_routing::{
    Condition, Filter, Picker, Profile, ProfileSpec, Replica, ReplicaId, ScorerSpec, Slo, SloSpec,
    Unroutable, pick,
};
use proptest::prelude::*;

/// Places of the candidates, and of the replicas that each stage took out.
type Left = (Vec<usize>, Vec<(ReplicaId, &'static str)>);

fn candidates(spec: &ProfileSpec, asked: &Asked, fleet: &[Replica]) -> Result<Left, Unroutable> {
    let mut left: Vec<usize> = (0..fleet.len()).collect();
    let mut removed = Vec::new();
    let mut keep = |left: &mut Vec<usize>, name, kept: &dyn Fn(&Replica) -> bool| {
        let out = left.iter().filter(|at| !kept(&fleet[**at]));
        removed.extend(out.map(|at| (fleet[*at].id, name)));
        left.retain(|at| kept(&fleet[*at]));
    };
    if left.is_empty() {
        return Err(Unroutable::Empty);
    }
    let open = |one: &Replica| matches!(one.condition, Condition::Ready | Condition::Warming(_));
    let asked_for = |one: &Replica| match &asked.subset {
        Some(subset) => subset.contains(&one.id),
        None => true,
    };
    let all_closed = !fleet.iter().any(|one| asked_for(one) && open(one));
    keep(&mut left, "condition", &|one| {
        let tried_anyway = all_closed && asked_for(one) && one.condition == Condition::Ejected;
        open(one) || tried_anyway
    });
    if left.is_empty() {
        return Err(Unroutable::Unhealthy);
    }
    if let Some(subset) = &asked.subset {
        keep(&mut left, "subset", &|one| subset.contains(&one.id));
        if left.is_empty() {
            return Err(Unroutable::Subset);
        }
    }
    keep(&mut left, "tried", &|one| !asked.tried.contains(&one.id));
    if left.is_empty() {
        return Err(Unroutable::Tried);
    }
    // The shares of these fleets are 0 and 1, so tickets do not matter.
    let warm = |one: &Replica| one.condition != Condition::Warming(0.0);
    if left.iter().any(|at| warm(&fleet[*at])) {
        keep(&mut left, "warming", &warm);
    }
    for filter in &spec.filters {
        let name = match filter {
            Filter::WaitingBelow { .. } => "waiting-below",
            Filter::KvBelow { .. } => "kv-below",
            Filter::AdapterLoaded => "adapter-loaded",
            Filter::Label { .. } => "label",
        };
        let kept = |one: &Replica| match filter {
            Filter::WaitingBelow { limit } => one.waiting < *limit,
            Filter::KvBelow { limit } => one.kv_use < *limit,
            Filter::AdapterLoaded => {
                let asked = asked.adapter.as_deref();
                asked.is_none_or(|name| one.adapters.iter().any(|held| &**held == name))
            }
            Filter::Label { key, value } => {
                let mut labels = one.labels.iter();
                labels.any(|(k, v)| **k == **key && **v == **value)
            }
        };
        if left.iter().any(|at| kept(&fleet[*at])) {
            keep(&mut left, name, &kept);
        }
    }
    Ok((left, removed))
}

/// Scores of all candidates; `None` for the session's, whose replica only the hash knows.
fn scores(name: &str, asked: &Asked, fleet: &[Replica], left: &[usize]) -> Option<Vec<f64>> {
    let prompt = f64::from(asked.prompt_tokens);
    let cached = |at: usize| f64::from(*asked.cached.get(at).unwrap_or(&0.0)).min(prompt);
    let one = |at: usize| &fleet[at];
    let by_rank = |value: &dyn Fn(usize) -> f64| {
        let values: Vec<f64> = left.iter().map(|at| value(*at)).collect();
        let most = values.iter().copied().fold(f64::MIN, f64::max);
        let least = values.iter().copied().fold(f64::MAX, f64::min);
        let score = |v: &f64| {
            if most == least {
                1.0
            } else {
                (most - v) / (most - least)
            }
        };
        values.iter().map(score).collect::<Vec<f64>>()
    };
    let by_ratio = |cost: &dyn Fn(usize) -> f64| {
        let costs: Vec<f64> = left.iter().map(|at| cost(*at)).collect();
        let least = costs.iter().copied().fold(f64::MAX, f64::min);
        let score = |c: &f64| if *c == 0.0 { 1.0 } else { least / c };
        costs.iter().map(score).collect::<Vec<f64>>()
    };
    let seconds =
        |at: usize, tokens: f64| tokens / f64::from(one(at).pace.prefill_tokens_per_s).max(1.0);
    let step = |at: usize| {
        let pace = &one(at).pace;
        f64::from(pace.decode_s)
            + f64::from(pace.decode_s_per_sequence) * f64::from(one(at).running)
    };
    Some(match name {
        "queue" => by_rank(&|at| f64::from(one(at).waiting)),
        "running" => by_rank(&|at| f64::from(one(at).waiting) + f64::from(one(at).running)),
        "kv-use" => left
            .iter()
            .map(|at| 1.0 - f64::from(one(*at).kv_use))
            .collect(),
        "prefix" => left
            .iter()
            .map(|at| cached(*at) / prompt.max(1.0))
            .collect(),
        "ttft" => by_ratio(&|at| {
            seconds(at, f64::from(one(at).backlog_tokens) + prompt - cached(at)) + step(at)
        }),
        "tpot" => by_ratio(&|at| {
            step(at) + f64::from(one(at).waiting) * f64::from(one(at).pace.decode_s_per_sequence)
        }),
        "slo" => left
            .iter()
            .map(|at| {
                let waiting = f64::from(one(*at).waiting);
                let tpot = step(*at) + waiting * f64::from(one(*at).pace.decode_s_per_sequence);
                let tokens = f64::from(one(*at).backlog_tokens) + prompt - cached(*at);
                let ttft = seconds(*at, tokens) + step(*at);
                let usual = (asked.slo == Slo::default()).then_some(USUAL);
                let Slo { ttft_s, tpot_s } = usual.unwrap_or(asked.slo);
                let part = |time: f64, target: Option<f32>| match target.map(f64::from) {
                    Some(target) if target > 0.0 && time > target => 0.5 * target / time,
                    Some(target) if target > 0.0 => 0.5 + 0.5 * (1.0 - time / target),
                    _ => 1.0,
                };
                part(ttft, ttft_s).min(part(tpot, tpot_s))
            })
            .collect(),
        "criticality" => {
            let load = |at: &usize| f64::from(one(*at).waiting) + f64::from(one(*at).running);
            let least = left.iter().map(load).fold(f64::MAX, f64::min);
            match asked.priority {
                1.. => by_rank(&|at| load(&at)),
                0 => vec![1.0; left.len()],
                _ if left.iter().all(|at| load(at) == least) => vec![1.0; left.len()],
                _ => left.iter().map(|at| f64::from(load(at) > least)).collect(),
            }
        }
        "cost" => by_ratio(&|at| {
            let own = seconds(at, prompt - cached(at));
            let before = seconds(at, f64::from(one(at).backlog_tokens));
            let cache = asked.caches.get(at).copied().unwrap_or_default();
            let pressure = f64::from(cache.regret) + 0.5 * f64::from(cache.fill);
            let others = own * (0.5 + 0.05 * f64::from(one(at).running) + pressure);
            let evicted = f64::from(one(at).kv_use) * seconds(at, prompt);
            let waiting = f64::from(one(at).waiting);
            let step = step(at) + waiting * f64::from(one(at).pace.decode_s_per_sequence);
            before + own + others + 20.0 * step + evicted
        }),
        "adapter" => left
            .iter()
            .map(|at| match &asked.adapter {
                None => 1.0,
                Some(name) if one(*at).adapters.iter().any(|held| **held == **name) => 1.0,
                Some(_) if one(*at).adapters.len() < one(*at).max_adapters as usize => 0.8,
                Some(_) => 0.0,
            })
            .collect(),
        "session" if asked.session.is_none() => vec![0.0; left.len()],
        _ => return None,
    })
}

/// Targets of the profile.
const USUAL: Slo = Slo {
    ttft_s: Some(2.0),
    tpot_s: Some(0.03),
};

fn filters() -> impl Strategy<Value = Vec<Filter>> {
    let filter = prop_oneof![
        (0f32..100.0).prop_map(|limit| Filter::WaitingBelow { limit }),
        (0f32..1.0).prop_map(|limit| Filter::KvBelow { limit }),
        Just(Filter::AdapterLoaded),
        Just(Filter::Label {
            key: "zone".to_owned(),
            value: "a".to_owned()
        }),
    ];
    prop::collection::vec(filter, 0..3)
}

fn spec() -> impl Strategy<Value = ProfileSpec> {
    let names = penstock_routing::SCORERS.to_vec();
    let scorer = (prop::sample::select(names), 0f32..10.0).prop_map(|(name, weight)| ScorerSpec {
        name: name.to_owned(),
        weight,
    });
    (filters(), prop::collection::vec(scorer, 0..5)).prop_map(|(filters, scorers)| ProfileSpec {
        filters,
        scorers,
        picker: Picker::MaxScore,
        slo: SloSpec {
            ttft_ms: USUAL.ttft_s.map(|seconds| 1e3 * seconds),
            tpot_ms: USUAL.tpot_s.map(|seconds| 1e3 * seconds),
        },
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn pick_does_what_its_description_says(
        spec in spec(), mut asked in asked(0.0..100.0f32), fleet in fleet(0.0..100.0f32),
    ) {
        // Only the hash knows where it is at home.
        asked.unknown = None;
        let profile = Profile::new(spec.clone()).unwrap();
        let found = pick(&profile, &asked.request(), &fleet);
        let (left, removed) = match candidates(&spec, &asked, &fleet) {
            Err(why) => {
                prop_assert_eq!(found, Err(why));
                return Ok(());
            }
            Ok(wanted) => wanted,
        };
        let found = found.unwrap();
        let found_removed = found.removed.iter().map(|one| (one.replica, one.filter));
        prop_assert_eq!(&found_removed.collect::<Vec<_>>(), &removed);
        let mut places: Vec<usize> = found.ranked.iter().map(|one| one.place).collect();
        places.sort_unstable();
        prop_assert_eq!(&places, &left);
        let mut totals = vec![0.0; fleet.len()];
        for (number, scorer) in spec.scorers.iter().enumerate() {
            let wanted = scores(&scorer.name, &asked, &fleet, &left);
            for one in &found.ranked {
                let (name, score, weight) = one.parts[number];
                prop_assert_eq!((name, weight), (scorer.name.as_str(), scorer.weight));
                if let Some(wanted) = &wanted {
                    let wanted = wanted[left.iter().position(|at| *at == one.place).unwrap()];
                    let near = (f64::from(score) - wanted).abs() < 1e-3;
                    prop_assert!(near, "{}: {} {}", name, score, wanted);
                }
                totals[one.place] += f64::from(score) * f64::from(weight);
            }
        }
        for one in &found.ranked {
            prop_assert_eq!(one.replica, fleet[one.place].id);
            prop_assert!((f64::from(one.total) - totals[one.place]).abs() < 1e-3);
        }
        let descends = found.ranked.windows(2).all(|two| two[0].total >= two[1].total);
        prop_assert!(descends);
    }
}
