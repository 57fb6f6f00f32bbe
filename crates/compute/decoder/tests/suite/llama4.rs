//! Llama 4 with experts, chunks and a query temperature that take effect within the prompt. The
//! fixture has the published values, because GGUF has no keys for others. These tests change its
//! spec and compare with transformers on the same weights and the same change.

use crate::common::logits::{answer, distance, largest_logit};
use crate::common::ranks::{Cuts, Way, load_cut};
use crate::common::{
    Answer, BLOCKS, Compute, GREEDY, NUMERICS, Reference, Request, Rng, allocated, checkpoint,
    isas, options, reference, run, spec,
};
use penstock_decoder::{Decoder, DecoderSpec, Options};
use penstock_kernels::{AttentionMask, Isa};
use serde_json::{Value, json};

const CONTAINERS: [&str; 2] = ["llama4moe", "llama4moe.gguf"];
/// As in the fixture's script.
const CHUNK: usize = 40;

fn acting_reference() -> Reference {
    reference("llama4moe/chunked")
}

/// Recipes, and the spec in which chunks and temperature take effect.
fn acting(container: &str) -> (Value, Value) {
    let (mut spec, weights) = spec(container);
    for kind in spec["kinds"].as_array_mut().unwrap() {
        let mixer = kind["mixer"].as_object_mut().unwrap();
        let changed = match mixer.contains_key("chunk") {
            true => mixer.insert("chunk".into(), json!(CHUNK)),
            false => mixer.insert("temperature".into(), json!({"floor": 16.0, "scale": 0.5})),
        };
        assert!(changed.is_some(), "each layer has the one or the other");
    }
    (spec, weights)
}

fn load((spec, weights): &(Value, Value), container: &str, options: &Options) -> Decoder {
    let (spec, weights) = (spec.to_string(), weights.to_string());
    let decoder = Decoder::load(&spec, &weights, &checkpoint(container), options).unwrap();
    allocated(decoder, BLOCKS)
}

#[test]
fn chunks_and_temperature_are_those_of_transformers() {
    let reference = acting_reference();
    let limit = 1e-3 * largest_logit(&reference);
    for isa in isas() {
        let set = options(isa);
        let answers = CONTAINERS.map(|container| {
            let decoder = load(&acting(container), container, &set);
            let (whole, mut sizes) = (answer(&decoder, &set, &reference, || 1000), Rng(1));
            let cut = answer(&decoder, &set, &reference, || 1 + sizes.below(60));
            assert!(cut == whole, "{container} on {isa}: in chunks");
            let off = distance(&whole, &reference);
            assert!(off <= limit, "{container} on {isa}: off by {off}");
            assert_eq!(whole.tokens, reference.greedy, "{container} on {isa}");
            whole
        });
        assert!(answers[0] == answers[1], "the containers on {isa}");
    }
}

/// Chunks and temperature each change the logits.
#[test]
fn chunks_and_temperature_act_within_the_prompt() {
    let (set, reference) = (options(Isa::detect()), acting_reference());
    let limit = 0.01 * largest_logit(&reference);
    for key in ["chunk", "temperature"] {
        let (mut changed, weights) = acting("llama4moe");
        for kind in changed["kinds"].as_array_mut().unwrap() {
            kind["mixer"].as_object_mut().unwrap().remove(key);
        }
        let decoder = load(&(changed, weights), "llama4moe", &set);
        let off = distance(&answer(&decoder, &set, &reference, || 1000), &reference);
        assert!(off > limit, "without {key}: off by {off} only");
    }
}

/// Prompts of several chunks at any offset, some with rows that choose the same expert.
fn requests() -> Vec<Request> {
    let mut rng = Rng(5);
    let mut request = |i: usize| {
        Request {
        prompt: (0..20 + 25 * i)
            .map(|p| if i.is_multiple_of(2) { rng.below(256) } else { 7 * i + p / 50 } as i32)
            .collect(),
        new_tokens: 10,
        sampling: GREEDY,
        logprobs: 5,
    }
    };
    (0..7).map(&mut request).collect()
}

#[test]
fn a_batch_is_each_request_alone() {
    let requests = requests();
    for isa in isas() {
        for (numerics, kv) in NUMERICS {
            let set = Options {
                numerics,
                kv,
                ..options(isa)
            };
            let decoder = load(&acting("llama4moe"), "llama4moe", &set);
            let one = |r: &Request| run(&decoder, &set, std::slice::from_ref(r), || 1000).remove(0);
            let alone: Vec<Answer> = requests.iter().map(one).collect();
            let mut sizes = Rng(2);
            let together = run(&decoder, &set, &requests, || 1 + sizes.below(50));
            assert!(together == alone, "{numerics:?} on {isa}");
        }
    }
}

#[test]
fn ranks_give_the_logits_of_transformers() {
    let (set, reference) = (options(Isa::detect()), acting_reference());
    let limit = 1e-3 * largest_logit(&reference);
    let (json, names) = acting("llama4moe");
    let parse = || DecoderSpec::parse(&json.to_string()).unwrap();
    let even = |tp, pp| Cuts::even(&parse(), tp, pp);
    for cuts in [
        even(2, 1),
        even(1, 2),
        even(2, 2),
        even(2, 2).by_experts(&parse()),
    ] {
        let path = checkpoint("llama4moe");
        let ranks = load_cut(Way::Ring, &parse, &names.to_string(), path, &set, &cuts);
        assert!(ranks.seen().contains(&AttentionMask::Chunk(CHUNK)));
        let got = answer(&ranks, &set, &reference, || 50);
        let off = distance(&got, &reference);
        assert!(off <= limit, "{cuts:?}: off by {off}");
        assert_eq!(got.tokens, reference.greedy, "{cuts:?}");
    }
}
