//! Choice of experts, index by index, compared with the routers of transformers
//! (tests/fixtures/make_routing.py).

use crate::common;
use penstock_kernels::{Choice, Groups, Routing, Score};
use serde_json::Value;

fn numbers(value: &Value) -> Vec<f32> {
    let items = value.as_array().unwrap().iter();
    items.map(|v| v.as_f64().unwrap() as f32).collect()
}

fn routing(case: &Value) -> Routing {
    let size = |key: &str| case[key].as_u64().unwrap() as usize;
    let number = |key: &str| case[key].as_f64().map(|v| v as f32);
    let groups = case["groups"].as_array().map(|groups| {
        let size = |at: usize| groups[at].as_u64().unwrap() as usize;
        Groups {
            count: size(0),
            keep: size(1),
            best: size(2),
        }
    });
    Routing {
        experts: size("experts"),
        chosen: size("chosen"),
        score: match case["score"].as_str().unwrap() {
            "softmax" => Score::Softmax,
            _ => Score::Sigmoid,
        },
        after: case["after"].as_bool().unwrap_or(false),
        correction: case.get("correction").map(numbers),
        groups,
        normalise: number("normalise"),
        scale: number("scale").unwrap_or(1.0),
    }
}

fn choose(routing: &Routing, logits: &[f32]) -> Vec<Choice> {
    let mut choices = vec![Choice::default(); routing.chosen];
    routing.choose(&mut logits.to_vec(), &mut choices);
    choices
}

fn experts(choices: &[Choice]) -> Vec<usize> {
    choices.iter().map(|c| c.expert as usize).collect()
}

#[test]
fn experts_and_weights_are_those_of_transformers() {
    let text = std::fs::read_to_string(common::fixtures().join("routing.json")).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    for (name, case) in cases.as_object().unwrap() {
        let routing = routing(case);
        let rows = case["logits"].as_array().unwrap();
        assert!(rows.len() > 4);
        for (row, logits) in rows.iter().enumerate() {
            let mut got = choose(&routing, &numbers(logits));
            got.sort_by(|a, b| b.weight.total_cmp(&a.weight));
            let want = &case["choices"][row];
            assert_eq!(serde_json::json!(experts(&got)), *want, "{name}, row {row}");
            for (got, want) in got.iter().zip(numbers(&case["weights"][row])) {
                let off = (got.weight - want).abs();
                assert!(off <= 2e-6 * want, "{name}: {} is not {want}", got.weight);
            }
        }
    }
}

fn plain(experts: usize, chosen: usize) -> Routing {
    Routing {
        experts,
        chosen,
        score: Score::Softmax,
        after: false,
        correction: None,
        groups: None,
        normalise: None,
        scale: 1.0,
    }
}

#[test]
fn equal_choices_go_to_the_lower_index() {
    let chosen = choose(&plain(6, 3), &[1.0, 2.0, 1.0, 2.0, 1.0, 0.0]);
    assert_eq!(experts(&chosen), [1, 3, 0]);
}

/// Probabilities that underflow to zero in f32 still order the experts.
#[test]
fn scores_too_small_for_a_softmax_are_ordered_by_their_logits() {
    let chosen = choose(&plain(4, 3), &[500.0, -3.0, -2.0, -1.0]);
    assert_eq!(experts(&chosen), [0, 3, 2]);
    assert_eq!(chosen[0].weight, 1.0);
}

#[test]
fn groups_by_their_maximum_leave_out_the_others() {
    let groups = Groups {
        count: 3,
        keep: 1,
        best: 1,
    };
    let routing = Routing {
        groups: Some(groups),
        ..plain(6, 2)
    };
    // The second-best expert is in a group that is not eligible.
    let chosen = choose(&routing, &[0.0, 5.0, 4.0, 3.0, 1.0, 2.0]);
    assert_eq!(experts(&chosen), [1, 0]);
}

/// An overflowed hidden state chooses some experts, and its result is NaN.
#[test]
fn logits_that_are_no_numbers_choose_experts_without_a_panic() {
    for score in [Score::Softmax, Score::Sigmoid, Score::Logit] {
        for logits in [[f32::NAN; 4], [f32::NAN, 1.0, f32::INFINITY, -1.0]] {
            let routing = Routing {
                score,
                normalise: Some(0.0),
                ..plain(4, 3)
            };
            let chosen = choose(&routing, &logits);
            assert!(experts(&chosen).iter().all(|&e| e < 4));
            let no_number = chosen.iter().all(|c| c.weight.is_nan());
            assert!(no_number || !logits[1].is_nan(), "{score:?}");
        }
    }
}
