#![allow(clippy::unwrap_used)]
//! The batcher does what the Python scheduler did, step for step (`tests/golden/batching/make.py`
//! has recorded it).

use std::path::Path;
use std::time::Duration;

use penstock_sim::batching::{Ask, Batcher};
use penstock_sim::{Answers, Profile};
use penstock_wire::{Step, TokenRequest};
use serde_json::{Value, json};

const MAX_MODEL_LEN: u32 = 130;
const VOCAB: u32 = 1000;

fn number(value: &Value) -> u32 {
    value.as_u64().unwrap() as u32
}

fn profile(limits: &Value) -> Profile {
    let mut members = limits.clone();
    members["max_model_len"] = MAX_MODEL_LEN.into();
    members["vocab_size"] = VOCAB.into();
    serde_json::from_value(members).unwrap()
}

fn request(told: &Value) -> Ask {
    let runs = told["prompt"].as_array().unwrap().iter();
    let prompt = runs.flat_map(|run| number(&run[0])..number(&run[0]) + number(&run[1]));
    Ask {
        request: TokenRequest {
            prompt: prompt.collect(),
            max_tokens: number(&told["max_tokens"]),
            ignore_eos: true,
            skip_prefix_cache: told["skip_prefix_cache"].as_bool().unwrap(),
            cache_salt: told["cache_salt"].as_str().unwrap().as_bytes().to_vec(),
            ..TokenRequest::default()
        },
        ..Ask::default()
    }
}

fn recorded(step: &Step) -> Value {
    let stats = &step.stats;
    let mut outputs: Vec<_> = step
        .outputs
        .iter()
        .map(|row| {
            (
                row.id,
                row.finish as u8,
                row.tokens.len(),
                row.cached_tokens,
            )
        })
        .collect();
    outputs.sort_by_key(|row| row.0);
    json!([
        stats.batch_tokens,
        stats.running,
        stats.waiting,
        stats.blocks_used,
        stats.preemptions_total,
        stats.prefix_query_tokens_total,
        stats.prefix_hit_tokens_total,
        outputs,
    ])
}

fn play(scenario: &Value, name: usize) {
    let answers = Answers {
        words: (1..VOCAB).collect(),
        eos: 0,
        seed: 1,
        lengths: None,
    };
    let mut batcher = Batcher::new(profile(&scenario["limits"]), answers);
    let requests = scenario["requests"].as_array().unwrap();
    for (at, expected) in scenario["steps"].as_array().unwrap().iter().enumerate() {
        for told in requests {
            let id = told["id"].as_u64().unwrap();
            if told["arrives"] == at {
                batcher.add(id, request(told), Duration::ZERO);
            }
            if told["cancelled"] == at {
                batcher.cancel(id);
            }
        }
        let step = match batcher.schedule(Duration::ZERO) {
            Some(_) => batcher.apply(),
            None => batcher.idle_step(),
        };
        assert_eq!(&recorded(&step), expected, "scenario {name}, step {at}");
        assert_eq!(batcher.fault(), None);
    }
    let left = batcher.stats();
    assert_eq!((left.running, left.waiting, left.blocks_used), (0, 0, 0));
}

#[test]
fn it_batches_as_the_scheduler_does() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/batching/scheduler.json");
    let scenarios: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let scenarios = scenarios.as_array().unwrap();
    assert!(scenarios.len() >= 30);
    for (name, scenario) in scenarios.iter().enumerate() {
        play(scenario, name);
    }
}
