#![allow(clippy::unwrap_used)]
//! Replays whose results can be computed by hand, and general invariants.

use serde_json::{Value, json};

use super::fleet_replay;

/// A step takes 1 ms, plus 1 ms per 10 prompt tokens.
fn engine() -> Value {
    json!({
        "max_num_seqs": 4, "max_num_batched_tokens": 64, "block_size": 16, "num_blocks": 64,
        "timing": {
            "base_us": 1000.0, "decode_us": [], "prompt_us_per_token": 100.0,
            "decode_us_per_context_ktoken": 0.0, "prompt_us_per_context_ktoken": 0.0,
        },
    })
}

fn arrival(at: f64, input_tokens: u32, output_tokens: u32, blocks: &[u64]) -> Value {
    json!({
        "at": at, "input_tokens": input_tokens, "output_tokens": output_tokens, "blocks": blocks,
    })
}

fn round_robin() -> Value {
    json!({"profile": {"picker": "round-robin", "scorers": []}})
}

fn setup(replicas: usize, policy: &Value, arrivals: &[Value]) -> Value {
    json!({
        "engines": vec![engine(); replicas], "policy": policy, "poll_s": 0.05,
        "reservations": true, "block_tokens": 16, "seed": 0, "arrivals": arrivals,
    })
}

fn play(setup: &Value) -> Value {
    let report = fleet_replay(&setup.to_string(), |_, _| true).unwrap();
    serde_json::from_str(&report).unwrap()
}

fn column(report: &Value, name: &str) -> Vec<f64> {
    let values = report[name].as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap()).collect()
}

fn near(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (a, b) in found.iter().zip(wanted) {
        assert!((a - b).abs() < 1e-9, "{found:?} {wanted:?}");
    }
}

#[test]
fn times_are_those_of_the_batchers() {
    let arrivals = [
        arrival(0.0, 20, 3, &[]),
        arrival(0.0, 40, 2, &[]),
        arrival(1.0, 30, 1, &[]),
    ];
    let report = play(&setup(2, &round_robin(), &arrivals));
    near(&column(&report, "replica"), &[0.0, 1.0, 0.0]);
    // In ms: the prompts take 1 + 20 x 0.1, 1 + 40 x 0.1 and 1 + 30 x 0.1; each further token takes
    // 1.
    near(&column(&report, "ttft"), &[0.003, 0.005, 0.004]);
    near(&column(&report, "end"), &[0.005, 0.006, 1.004]);
    assert_eq!(report["tpot"], json!([0.001, 0.001, null]));
    assert_eq!(report["failed"], 0);
}

#[test]
fn a_prefix_is_found_where_it_was_sent() {
    let blocks = [7, 8, 9, 10];
    let arrivals = [
        arrival(0.0, 64, 2, &blocks),
        arrival(1.0, 64, 2, &blocks),
        arrival(2.0, 64, 2, &[7, 8, 11, 12]),
    ];
    let prefix = json!({"profile": {"scorers": [{"name": "prefix"}]}});
    for policy in [&prefix, &json!("cache-aware"), &json!("oracle")] {
        let report = play(&setup(3, policy, &arrivals));
        // The last block of an equal prompt is recomputed for its logits.
        near(&column(&report, "cached"), &[0.0, 48.0, 32.0]);
    }
    let report = play(&setup(3, &round_robin(), &arrivals));
    near(&column(&report, "cached"), &[0.0, 0.0, 0.0]);
}

#[test]
fn reservations_spread_a_burst_between_two_polls_and_metrics_alone_do_not() {
    let burst: Vec<Value> = (0..40)
        .map(|n| arrival(1.0 + f64::from(n) * 1e-6, 30, 5, &[]))
        .collect();
    let queue = json!({"profile": {"scorers": [{"name": "queue"}]}});
    let most = |reservations: bool| {
        let mut setup = setup(4, &queue, &burst);
        setup["reservations"] = json!(reservations);
        setup["poll_s"] = json!(10.0);
        // The last poll showed equal replicas, so that without reservations the choice is random.
        let replicas = column(&play(&setup), "replica");
        let count = |one| replicas.iter().filter(|at| **at == f64::from(one)).count();
        (0..4).map(count).max().unwrap()
    };
    assert_eq!(most(true), 10);
    assert!(most(false) > 10);
}

#[test]
fn the_default_spreads_short_requests_while_answers_and_polls_come() {
    for (span, poll) in [
        (0.001, 0.05),
        (0.05, 0.05),
        (0.2, 0.01),
        (0.2, 10.0),
        (2.0, 0.05),
    ] {
        let burst: Vec<Value> = (0..200)
            .map(|n| arrival(1.0 + span * f64::from(n) / 200.0, 4 + n % 3, 40, &[]))
            .collect();
        let mut setup = setup(4, &json!({"profile": {}}), &burst);
        for engine in setup["engines"].as_array_mut().unwrap() {
            engine["max_num_seqs"] = json!(64);
            engine["num_blocks"] = json!(4096);
        }
        setup["poll_s"] = json!(poll);
        let replicas = column(&play(&setup), "replica");
        let count = |one| replicas.iter().filter(|at| **at == f64::from(one)).count();
        let counts: Vec<usize> = (0..4).map(count).collect();
        assert!(
            counts.iter().all(|count| (40..=60).contains(count)),
            "{span} s: {counts:?}"
        );
    }
}

/// Gateways that do not communicate send a new prompt to the same replica.
#[test]
fn several_gateways_compute_a_prefix_once() {
    let arrivals: Vec<Value> = (0..80u32)
        .map(|at| {
            let own = u64::from(at % 8) * 10;
            arrival(f64::from(at), 64, 2, &[7 + own, 8 + own, 9 + own])
        })
        .collect();
    let prefix = json!({"profile": {"scorers": [{"name": "prefix"}]}});
    let computed = |gateways: usize| {
        let mut setup = setup(16, &prefix, &arrivals);
        setup["gateways"] = json!(gateways);
        let report = play(&setup);
        assert_eq!(report["failed"], 0);
        let cached = column(&report, "cached");
        cached.iter().filter(|tokens| **tokens < 48.0).count()
    };
    assert_eq!(computed(1), 8);
    assert_eq!(computed(4), 8);
}

#[test]
fn without_a_prefix_the_smallest_tree_decides_when_all_caches_are_full() {
    // Each prompt fills more than half of a cache of 64 blocks.
    let arrivals: Vec<Value> = (0..40u64)
        .map(|n| {
            arrival(
                n as f64,
                640,
                1,
                &(n * 100..n * 100 + 40).collect::<Vec<_>>(),
            )
        })
        .collect();
    let report = play(&setup(4, &json!("cache-aware"), &arrivals));
    let replicas = column(&report, "replica");
    let count = |one| replicas.iter().filter(|at| **at == f64::from(one)).count();
    assert_eq!((0..4).map(count).collect::<Vec<_>>(), [10; 4]);
}

#[test]
fn the_oracle_leaves_a_replica_whose_answer_is_long() {
    let arrivals = [
        arrival(0.0, 200, 1, &[]),
        arrival(0.001, 16, 400, &[]),
        arrival(0.1, 16, 1, &[]),
    ];
    let mut one_slot = setup(2, &json!("oracle"), &arrivals);
    one_slot["engines"][0]["max_num_seqs"] = json!(1);
    one_slot["engines"][1]["max_num_seqs"] = json!(1);
    let replicas = column(&play(&one_slot), "replica");
    assert_ne!(replicas[0], replicas[1]);
    assert_ne!(replicas[1], replicas[2]);
}

#[test]
fn every_request_ends_once_whatever_the_policy() {
    let arrivals: Vec<Value> = (0..60u64)
        .map(|n| {
            let blocks: Vec<u64> = (0..n % 5).map(|block| n % 3 * 100 + block).collect();
            let tokens = if n == 30 { 5000 } else { 20 + n as u32 * 3 };
            arrival(n as f64 * 0.004, tokens, 1 + n as u32 % 20, &blocks)
        })
        .collect();
    for policy in [
        json!({"profile": {}}),
        round_robin(),
        json!("cache-aware"),
        json!("oracle"),
    ] {
        let report = play(&setup(3, &policy, &arrivals));
        // The failed request is the one that no replica can hold.
        assert_eq!(report["failed"], 1, "{policy}");
        let ends = report["end"].as_array().unwrap();
        assert_eq!(ends.iter().filter(|end| end.is_null()).count(), 1);
        let again = play(&setup(3, &policy, &arrivals));
        assert_eq!(report, again);
    }
}

#[test]
fn wrong_setups_are_refused_and_a_replay_can_be_ended() {
    let good = setup(1, &round_robin(), &[arrival(0.0, 1, 1, &[])]);
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut setup = good.clone();
        change(&mut setup);
        let found = fleet_replay(&setup.to_string(), |_, _| true);
        found.unwrap_err().to_string()
    };
    assert!(refused(&|s| s["engines"] = json!([])).contains("engines"));
    assert!(refused(&|s| s["engines"] = json!(["fats"])).contains("fats"));
    assert!(refused(&|s| s["poll_s"] = json!(0)).contains("poll_s"));
    assert!(refused(&|s| s["arrivals"][0]["input_tokens"] = json!(0)).contains("tokens"));
    assert!(refused(&|s| s["gateways"] = json!(0)).contains("gateways"));
    let profile = json!({"profile": {"scorers": [{"name": "quue"}]}});
    assert!(refused(&|s| s["policy"] = profile.clone()).contains("quue"));
    let ended = fleet_replay(&good.to_string(), |_, _| false).unwrap_err();
    assert!(ended.to_string().contains("ended"));
}
