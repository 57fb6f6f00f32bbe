//! The same prompt and seed give the same bits, for any batch, any chunks of the prompt, and any
//! number of threads.

use std::path::Path;

use crate::common::{
    Answer, BLOCKS, FAMILIES, GREEDY, NUMERICS, Request, Rng, allocated, default_model, experts,
    isas, load, options, run,
};
use penstock_decoder::{Decoder, Numerics, Options};
use penstock_kernels::{Isa, KvType, WeightFormat};
use penstock_wire::SamplingParams;
use serde_json::{Value, json};

/// Requests of mixed lengths, greedy and sampled.
fn requests(
    rng: &mut Rng,
    count: usize,
    vocab: usize,
    longest: usize,
    new_tokens: usize,
) -> Vec<Request> {
    let mut one = |i: usize| {
        let length = if i.is_multiple_of(5) {
            1 + rng.below(3)
        } else {
            1 + rng.below(longest)
        };
        let prompt = (0..length).map(|_| rng.below(vocab) as i32).collect();
        let sampled = SamplingParams {
            temperature: 0.5 + rng.below(10) as f32 / 10.0,
            top_k: [0, 5, 40][rng.below(3)],
            top_p: [1.0, 0.9, 0.5][rng.below(3)],
            seed: rng.below(1 << 40) as u64,
            choice: rng.below(3) as u32,
            logprobs: None,
            ..GREEDY
        };
        let sampling = if i.is_multiple_of(2) { GREEDY } else { sampled };
        Request {
            prompt,
            new_tokens: 1 + rng.below(new_tokens),
            sampling,
            logprobs: 5,
        }
    };
    (0..count).map(&mut one).collect()
}

/// The debug form compares floats by bits if they are not NaN, and these never are.
fn assert_same(got: &[Answer], want: &[Answer], what: &str) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            got == want,
            "{what}: request {i} differs\n{:?}\n{:?}",
            got.tokens,
            want.tokens
        );
    }
}

/// Requests whose prompts repeat one token, and one that does not. Their rows concentrate on a few
/// experts, which rows of other requests may or may not share.
fn skewed_requests(rng: &mut Rng) -> Vec<Request> {
    let mut requests = requests(rng, 6, 256, 70, 12);
    for request in requests.iter_mut().skip(1) {
        let token = request.prompt[0];
        request.prompt.fill(token);
        request.prompt.resize(request.prompt.len().max(40), token);
    }
    requests
}

/// Each request gives bit for bit its answer when computed alone with an unchunked prompt: in
/// batches, with chunked prompts, with other numbers of threads and other block sizes.
fn answers_alike(family: &str, isa: Isa, (numerics, kv): (Numerics, KvType), requests: &[Request]) {
    let set = |threads, block_size| Options {
        numerics,
        kv,
        threads,
        block_size,
        ..options(isa)
    };
    let (single, mut rng) = (set(1, 16), Rng(9));
    let decoder = load(family, &single);
    let alone: Vec<Answer> = requests
        .iter()
        .map(|r| run(&decoder, &single, std::slice::from_ref(r), || 1000).remove(0))
        .collect();
    // Threads and blocks use the same code on every instruction set.
    let sizes: &[_] = match isa == Isa::detect() {
        true => &[(1, 16), (2, 48), (3, 16)],
        false => &[(2, 48)],
    };
    for &(threads, block_size) in sizes {
        let set = set(threads, block_size);
        let together = run(&load(family, &set), &set, requests, || 1 + rng.below(30));
        let what =
            format!("{family} {numerics:?} on {isa}, {threads} threads, blocks of {block_size}");
        assert_same(&together, &alone, &what);
    }
}

/// Every family in every numeric format on every instruction set.
fn crossed(mut check: impl FnMut(&str, Isa, (Numerics, KvType))) {
    for isa in isas() {
        // The other container has the same weights.
        for family in FAMILIES.iter().filter(|name| !name.ends_with(".gguf")) {
            NUMERICS
                .into_iter()
                .for_each(|form| check(family, isa, form));
        }
    }
}

#[test]
fn tiny_models_answer_alike_in_any_company() {
    let requests = requests(&mut Rng(9), 8, 256, 90, 12);
    crossed(|family, isa, form| answers_alike(family, isa, form, &requests));
}

#[test]
fn mixtures_answer_alike_under_skewed_routing() {
    let requests = skewed_requests(&mut Rng(3));
    crossed(|family, isa, form| {
        if experts(family).is_some() {
            answers_alike(family, isa, form, &requests);
        }
    });
}

#[test]
fn another_seed_or_choice_gives_other_tokens() {
    let set = options(Isa::detect());
    let decoder = load("llama", &set);
    let answer = |seed, choice| {
        let sampling = SamplingParams {
            temperature: 1.5,
            top_k: 0,
            top_p: 1.0,
            seed,
            choice,
            logprobs: None,
            ..GREEDY
        };
        run(
            &decoder,
            &set,
            &[Request {
                prompt: vec![1, 2, 3],
                new_tokens: 30,
                sampling,
                logprobs: 0,
            }],
            || 10,
        )
        .remove(0)
        .tokens
    };
    let first = answer(1, 0);
    assert_eq!(first, answer(1, 0));
    assert_ne!(first, answer(2, 0));
    assert_ne!(first, answer(1, 1));
}

/// Spec and weight recipes that the model package writes for SmolLM2-135M.
fn smollm2() -> (Value, Value) {
    let norm = json!({"kind": "rms", "eps": 1e-5});
    let layer = json!({
        "mixer_norms": {"before": norm},
        "mixer": {
            "kind": "gqa", "heads": 9, "kv_heads": 3, "head_dim": 64, "rope": {"theta": 100000.0},
        },
        "feed_forward_norms": {"before": norm},
        "feed_forward": {"kind": "gated", "intermediate": 1536, "activation": "silu"},
    });
    let spec = json!({
        "family": "llama", "hidden": 576, "vocab": 49152, "max_position": 8192, "final_norm": norm,
        "kinds": [layer], "layers": vec![0; 30], "tied_embeddings": true,
    });
    let layer = |i: usize| {
        let name = |module: &str| format!("blk.{i}.{module}.weight");
        let rotated = |module| json!({"tensor": name(module), "interleaved": 64});
        json!({
            "mixer_norm": name("attn_norm"), "q": rotated("attn_q"), "k": rotated("attn_k"),
            "v": name("attn_v"), "o": name("attn_output"), "feed_forward_norm": name("ffn_norm"),
            "gate": name("ffn_gate"), "up": name("ffn_up"), "down": name("ffn_down"),
        })
    };
    let weights = json!({
        "embed": "token_embd.weight", "final_norm": "output_norm.weight",
        "layers": (0..30).map(layer).collect::<Vec<_>>(),
    });
    (spec, weights)
}

fn load_smollm2(path: &Path, options: &Options) -> Decoder {
    let (spec, weights) = smollm2();
    let decoder = Decoder::load(&spec.to_string(), &weights.to_string(), path, options);
    allocated(decoder.unwrap(), BLOCKS)
}

/// 32 concurrent requests of up to 700 tokens with chunked prompts, compared with each request
/// alone and unchunked.
#[test]
fn the_default_model_answers_32_requests_as_each_alone() {
    let Some(path) = default_model() else { return };
    let set = |isa, threads| {
        let numerics = Numerics::AsStored {
            floats: WeightFormat::Bf16,
        };
        Options {
            threads,
            numerics,
            kv: KvType::Bf16,
            block_size: 32,
            ..options(isa)
        }
    };
    let mut rng = Rng(17);
    let mut requests = requests(&mut rng, 32, 49152, 120, 12);
    requests[3].prompt = (0..700).map(|_| rng.below(49152) as i32).collect();
    requests[8].prompt = requests[3].prompt[..300].to_vec();
    let best = Isa::detect();
    let decoder = load_smollm2(&path, &set(best, 2));
    let alone: Vec<Answer> = requests
        .iter()
        .map(|r| run(&decoder, &set(best, 2), std::slice::from_ref(r), || 1000).remove(0))
        .collect();
    for threads in [1, 2] {
        let set = set(best, threads);
        let together = run(&load_smollm2(&path, &set), &set, &requests, || {
            1 + rng.below(200)
        });
        assert_same(&together, &alone, &format!("{best}, {threads} threads"));
    }
    if best == Isa::Avx512 {
        // A short run on the portable kernels: attention differs in the last bits, the guarantee is
        // the same.
        let few = &requests[4..8];
        let set = set(Isa::Avx2, 2);
        let decoder = load_smollm2(&path, &set);
        let alone: Vec<Answer> = few
            .iter()
            .map(|r| run(&decoder, &set, std::slice::from_ref(r), || 1000).remove(0))
            .collect();
        assert_same(
            &run(&decoder, &set, few, || 1 + rng.below(40)),
            &alone,
            "avx2",
        );
    }
}
