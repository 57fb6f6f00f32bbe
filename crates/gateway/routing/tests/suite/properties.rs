//! What holds for every scorer and picker, whatever replicas report.

use std::collections::HashMap;

use crate::support::{asked, fleet, hostile};
use penstock_routing::{
    Decision, Picker, Profile, ProfileSpec, Replica, ReplicaId, Request, SCORERS, ScorerSpec,
    SloSpec, Unknown, pick,
};
use proptest::prelude::*;

fn profile(scorers: &[&str], picker: Picker) -> Profile {
    let scorers = scorers.iter().map(|name| ScorerSpec {
        name: (*name).to_owned(),
        weight: 1.0,
    });
    let spec = ProfileSpec {
        filters: Vec::new(),
        scorers: scorers.collect(),
        picker,
        slo: SloSpec::default(),
    };
    Profile::new(spec).unwrap()
}

/// Score of the replica at a place.
fn score(decision: &Decision, place: usize) -> f32 {
    let one = decision.ranked.iter().find(|one| one.place == place);
    one.unwrap().parts[0].1
}

const PICKERS: [Picker; 4] = [
    Picker::MaxScore,
    Picker::WeightedRandom,
    Picker::Random,
    Picker::RoundRobin,
];

/// Makes a replica, or what is cached there, worse by an amount of 0 to 1.
type Worse = fn(&mut Replica, &mut f32, f32);

/// The quantities that each scorer looks at.
fn quantities() -> Vec<(&'static str, Vec<Worse>)> {
    let waiting: Worse = |one, _, more| one.waiting += 40.0 * more;
    let running: Worse = |one, _, more| one.running += 40.0 * more;
    let kv: Worse = |one, _, more| one.kv_use = (one.kv_use + more).min(1.0);
    let backlog: Worse = |one, _, more| one.backlog_tokens += 9e3 * more;
    let slower: Worse = |one, _, more| one.pace.prefill_tokens_per_s *= 1.0 - 0.9 * more;
    let cached: Worse = |_, cached, more| *cached *= 1.0 - more;
    let step: Worse = |one, _, more| one.pace.decode_s += more;
    vec![
        ("queue", vec![waiting]),
        ("running", vec![waiting, running]),
        ("kv-use", vec![kv]),
        ("prefix", vec![cached]),
        ("tpot", vec![step, waiting, running]),
        ("slo", vec![backlog, slower, cached, step, waiting, running]),
        ("ttft", vec![backlog, slower, cached, step, running]),
        (
            "cost",
            vec![backlog, slower, cached, step, waiting, running, kv],
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn scores_are_in_range_whatever_is_reported(
        asked in asked(hostile()), fleet in fleet(hostile()),
    ) {
        for picker in PICKERS {
            let Ok(found) = pick(&profile(&SCORERS, picker), &asked.request(), &fleet) else {
                return Ok(());
            };
            prop_assert_eq!(found.ranked.len() + found.removed.len(), fleet.len());
            for one in &found.ranked {
                for (name, score, _) in &one.parts {
                    prop_assert!((0.0..=1.0).contains(score), "{} {}", name, score);
                }
                prop_assert!(one.total.is_finite());
            }
        }
    }

    #[test]
    fn decisions_do_not_depend_on_anything_else(
        asked in asked(hostile()), fleet in fleet(hostile()),
    ) {
        for picker in PICKERS {
            let profile = profile(&SCORERS, picker);
            let first = pick(&profile, &asked.request(), &fleet);
            prop_assert_eq!(first, pick(&profile, &asked.request(), &fleet));
        }
    }

    #[test]
    fn worse_is_never_scored_higher(
        fleet in fleet(1.0..100.0f32), mut asked in asked(1.0..100.0f32),
        at in any::<prop::sample::Index>(), more in 0.01..1.0f32,
    ) {
        prop_assume!(!fleet.is_empty());
        asked.cached.resize(fleet.len(), 0.0);
        for (name, quantities) in quantities() {
            let profile = profile(&[name], Picker::MaxScore);
            let Ok(before) = pick(&profile, &asked.request(), &fleet) else {
                return Ok(());
            };
            let place = before.ranked[at.index(before.ranked.len())].place;
            for worse in quantities {
                let (mut fleet, mut asked) = (fleet.clone(), asked.clone());
                worse(&mut fleet[place], &mut asked.cached[place], more);
                let after = pick(&profile, &asked.request(), &fleet).unwrap();
                let (was, is) = (score(&before, place), score(&after, place));
                prop_assert!(is <= was + 1e-5, "{name}: {was} became {is}");
                // The others gain by it, or stay.
                let others = before.ranked.iter().filter(|one| one.place != place);
                for other in others {
                    let (was, is) = (other.parts[0].1, score(&after, other.place));
                    prop_assert!(is >= was - 1e-5, "{name}: the others lost, {was} to {is}");
                }
            }
        }
    }
}

/// Replicas with the same addresses and any other load.
fn loaded_otherwise(replicas: Vec<Replica>) -> impl Strategy<Value = (Vec<Replica>, Vec<Replica>)> {
    let numbers = prop::collection::vec(prop::collection::vec(hostile(), 4), replicas.len());
    numbers.prop_map(move |numbers| {
        let mut other = replicas.clone();
        for (one, n) in other.iter_mut().zip(numbers) {
            (one.waiting, one.running) = (n[0], n[1]);
            (one.kv_use, one.backlog_tokens) = (n[2], n[3]);
        }
        (replicas.clone(), other)
    })
}

proptest! {
    #[test]
    fn a_replica_with_the_adapter_is_scored_highest(
        fleet in fleet(hostile()), mut asked in asked(hostile()),
        adapter in prop::sample::select(vec!["sql", "law", "art"]),
        at in any::<prop::sample::Index>(),
    ) {
        asked.adapter = Some(adapter.to_owned());
        let profile = profile(&["adapter"], Picker::MaxScore);
        let Ok(found) = pick(&profile, &asked.request(), &fleet) else {
            return Ok(());
        };
        let loads = |place: usize| fleet[place].adapters.iter().any(|one| **one == *adapter);
        let (with, without): (Vec<_>, Vec<_>) =
            found.ranked.iter().partition(|one| loads(one.place));
        for one in &with {
            for other in &without {
                prop_assert!(one.parts[0].1 > other.parts[0].1, "{one:?} {other:?}");
            }
            prop_assert_eq!(one.parts[0].1, with[0].parts[0].1);
        }
        // Loading it lowers no score there, and changes none elsewhere.
        let place = found.ranked[at.index(found.ranked.len())].place;
        let mut more = fleet.clone();
        let loaded = fleet[place].adapters.iter().cloned();
        more[place].adapters = loaded.chain([adapter.into()]).collect();
        let after = pick(&profile, &asked.request(), &more).unwrap();
        for one in &found.ranked {
            let (was, is) = (one.parts[0].1, score(&after, one.place));
            prop_assert!(is >= was && (is == was || one.place == place), "{was} became {is}");
        }
    }

    #[test]
    fn a_session_has_one_replica_whatever_the_load(
        (before, after) in fleet(hostile()).prop_flat_map(loaded_otherwise),
        mut asked in asked(hostile()), session in any::<u64>(),
    ) {
        asked.session = Some(session);
        let profile = profile(&["session"], Picker::MaxScore);
        let Ok(found) = pick(&profile, &asked.request(), &before) else {
            return Ok(());
        };
        let scores = |decision: &Decision| -> HashMap<usize, f32> {
            decision.ranked.iter().map(|one| (one.place, one.parts[0].1)).collect()
        };
        let was = scores(&found);
        prop_assert_eq!(was.values().filter(|score| **score == 1.0).count(), 1);
        prop_assert_eq!(was.values().filter(|score| **score == 0.0).count(), was.len() - 1);
        let now = pick(&profile, &asked.request(), &after).unwrap();
        prop_assert_eq!(was, scores(&now));
    }
}

fn idle(many: u32) -> Vec<Replica> {
    let replica = |id| Replica::new(ReplicaId(id), format!("r{id}:80"));
    (0..many).map(replica).collect()
}

fn wins(profile: &Profile, fleet: &[Replica], tickets: u64) -> HashMap<ReplicaId, u64> {
    let mut won = HashMap::new();
    for ticket in 0..tickets {
        let request = Request {
            prompt_tokens: 1000.0,
            ticket,
            ..Request::default()
        };
        let decision = pick(profile, &request, fleet).unwrap();
        *won.entry(decision.first().replica).or_default() += 1;
    }
    won
}

#[test]
fn a_replica_that_reports_nonsense_gets_what_no_other_can_take() {
    let mut fleet = idle(3);
    fleet[1].waiting = f32::NAN;
    fleet[1].backlog_tokens = f32::NAN;
    for scorers in [&["queue"][..], &["running"], &["ttft"], &["cost"]] {
        let profile = profile(scorers, Picker::MaxScore);
        let won = wins(&profile, &fleet, 200);
        assert!(!won.contains_key(&ReplicaId(1)), "{scorers:?}: {won:?}");
        let decision = pick(&profile, &Request::default(), &fleet[1..2]).unwrap();
        assert_eq!(decision.first().replica, ReplicaId(1));
    }
}

#[test]
fn nonsense_of_one_is_no_measure_of_the_others() {
    let mut fleet = idle(3);
    fleet[0].waiting = 3.0;
    fleet[2].waiting = f32::INFINITY;
    let won = wins(&profile(&["queue"], Picker::MaxScore), &fleet, 50);
    assert_eq!(won, HashMap::from([(ReplicaId(1), 50)]));
}

#[test]
fn equal_replicas_share_evenly() {
    for picker in PICKERS {
        let won = wins(&profile(&SCORERS, picker), &idle(4), 4000);
        let even = |count: &u64| (850..1150).contains(count);
        assert!(
            won.len() == 4 && won.values().all(even),
            "{picker:?}: {won:?}"
        );
    }
}

#[test]
fn the_default_leaves_a_hot_prefix_for_an_idle_replica_when_the_wait_costs_more() {
    let profile = Profile::new(ProfileSpec::default()).unwrap();
    let request = Request {
        prompt_tokens: 4000.0,
        cached_tokens: &[3900.0, 0.0],
        ..Request::default()
    };
    let winner = |backlog| {
        let mut fleet = idle(2);
        fleet[0].backlog_tokens = backlog;
        pick(&profile, &request, &fleet).unwrap().first().place
    };
    assert_eq!((winner(0.0), winner(3000.0), winner(9000.0)), (0, 0, 1));
}

/// Address of the replica that the default picks for a new prompt of this name.
fn home(key: u64, fleet: &[Replica]) -> String {
    let request = Request {
        prompt_tokens: 4000.0,
        unknown: Some(Unknown {
            key,
            tokens: 4000.0,
            others: 0.5,
        }),
        ticket: key,
        ..Request::default()
    };
    let profile = Profile::new(ProfileSpec::default()).unwrap();
    let decision = pick(&profile, &request, fleet).unwrap();
    decision.first().address.to_string()
}

proptest! {
    #[test]
    fn gateways_that_know_the_replicas_in_another_order_agree_on_a_new_prompt(
        key in any::<u64>(), order in Just((0..7).collect::<Vec<u32>>()).prop_shuffle(),
    ) {
        let other: Vec<Replica> = (0..)
            .zip(&order)
            .map(|(id, at)| Replica::new(ReplicaId(id), format!("r{at}:80")))
            .collect();
        prop_assert_eq!(home(key, &idle(7)), home(key, &other));
    }
}

#[test]
fn new_prompts_spread_and_only_those_of_a_lost_replica_move() {
    let all = idle(8);
    let fewer: Vec<Replica> = all.iter().filter(|one| one.id.0 != 3).cloned().collect();
    let mut counts: HashMap<String, u32> = HashMap::new();
    for key in 0..4000 {
        let before = home(key, &all);
        if before != "r3:80" {
            assert_eq!(home(key, &fewer), before);
        }
        *counts.entry(before).or_default() += 1;
    }
    let even = |count: &u32| (400..600).contains(count);
    assert!(counts.len() == 8 && counts.values().all(even), "{counts:?}");
}

#[test]
fn a_home_with_a_queue_is_left() {
    let mut fleet = idle(4);
    let at = fleet
        .iter()
        .position(|one| *one.address == *home(7, &idle(4)))
        .unwrap();
    fleet[at].backlog_tokens = 4000.0;
    assert_ne!(home(7, &fleet), fleet[at].address.to_string());
}

#[test]
fn what_a_replica_holds_counts_more_than_a_home() {
    let fleet = idle(4);
    let at = fleet
        .iter()
        .position(|one| *one.address != *home(7, &fleet))
        .unwrap();
    let mut cached = [0.0; 4];
    cached[at] = 3000.0;
    let request = Request {
        prompt_tokens: 4000.0,
        cached_tokens: &cached,
        unknown: Some(Unknown {
            key: 7,
            tokens: 1000.0,
            others: 1.0,
        }),
        ..Request::default()
    };
    let profile = Profile::new(ProfileSpec::default()).unwrap();
    assert_eq!(pick(&profile, &request, &fleet).unwrap().first().place, at);
}
