//! Mixtures of experts: both containers, ranks with whole experts, and checkpoints that do not
//! match.

use crate::common;
use crate::common::files::row;
use crate::common::ranks::{Cuts, load_ranks};
use crate::common::{
    Answer, Compute, GREEDY, NUMERICS, Reference, Request, Rng, Scratch, Stored, checkpoint, isas,
    load, options, reference, run, spec, tensors,
};
use penstock_decoder::{Decoder, DecoderSpec, Numerics, Options};
use penstock_kernels::{Isa, WeightFormat};
use serde_json::{Value, json};

const MIXTURES: [&str; 9] = [
    "deepseek2",
    "deepseek3",
    "glm4moe",
    "gptoss",
    "llama4moe",
    "mixed",
    "mixtral",
    "qwen2moe",
    "qwen3moe",
];

fn answer(decoder: &impl Compute, options: &Options, reference: &Reference) -> Answer {
    let request = Request {
        prompt: reference.tokens.clone(),
        new_tokens: reference.greedy.len(),
        sampling: GREEDY,
        logprobs: 20,
    };
    run(decoder, options, &[request], || 11).remove(0)
}

#[test]
fn both_containers_hold_the_same_model_bit_for_bit() {
    let set = options(Isa::detect());
    for family in ["llama4moe", "mixtral", "qwen2moe", "qwen3moe"] {
        let (reference, twin) = (reference(family), format!("{family}.gguf"));
        let stored = answer(&load(family, &set), &set, &reference);
        let same = answer(&load(&twin, &set), &set, &reference) == stored;
        assert!(same, "{family}");
    }
}

/// Requests of mixed lengths with repeated tokens, so that their routing is skewed.
fn requests() -> Vec<Request> {
    let request = |i: usize| Request {
        prompt: (0..5 + 9 * i)
            .map(|p| ((i * 31 + p % 3) % 256) as i32)
            .collect(),
        new_tokens: 3 + i,
        sampling: GREEDY,
        logprobs: 3,
    };
    (0..8).map(request).collect()
}

/// Ranks with whole experts give the logits of transformers, and in every numeric format a batch
/// equals its requests alone.
#[test]
fn ranks_may_have_whole_experts() {
    for family in MIXTURES {
        let (spec_json, _) = spec(family);
        let spec = DecoderSpec::parse(&spec_json.to_string()).unwrap();
        for (tp, pp) in [(2, 1), (3, 2)] {
            let cuts = Cuts::even(&spec, tp, pp).by_experts(&spec);
            let exact = options(Isa::detect());
            let reference = reference(family);
            let got = answer(&load_ranks(family, &exact, &cuts), &exact, &reference);
            assert_eq!(got.tokens, reference.greedy, "{family} tp={tp} pp={pp}");
            let whole = answer(&load(family, &exact), &exact, &reference);
            for (got, whole) in got.prompt.iter().zip(&whole.prompt) {
                let off = (got.logprob - whole.logprob).abs();
                assert!(off < 1e-3, "{family} tp={tp} pp={pp}: off by {off}");
            }
            // Further partitions use the same code on every instruction set.
            for isa in isas()
                .into_iter()
                .filter(|&isa| pp == 1 || isa == exact.isa)
            {
                for (numerics, kv) in NUMERICS {
                    let set = Options {
                        numerics,
                        kv,
                        ..options(isa)
                    };
                    batches_are_each_alone(family, &set, &cuts);
                }
            }
        }
    }
}

fn batches_are_each_alone(family: &str, set: &Options, cuts: &Cuts) {
    let ranks = load_ranks(family, set, cuts);
    let one = |r: &Request| run(&ranks, set, std::slice::from_ref(r), || 1000).remove(0);
    let alone: Vec<Answer> = requests().iter().map(one).collect();
    let same = run(&ranks, set, &requests(), || 7) == alone;
    let Options { numerics, isa, .. } = set;
    assert!(same, "{family} {numerics:?} on {isa} {cuts:?}");
}

/// Rows of a repeated token choose fewer experts than rows of distinct tokens.
#[test]
fn rows_of_one_token_choose_fewer_experts() {
    let set = options(Isa::detect());
    for family in MIXTURES {
        let read = |prompt: Vec<i32>| {
            let decoder = load(family, &set);
            let request = Request {
                prompt,
                new_tokens: 1,
                sampling: GREEDY,
                logprobs: 0,
            };
            run(&decoder, &set, &[request], || 48);
            decoder.experts_read()
        };
        let mut rng = Rng(4);
        let others = read((0..48).map(|_| rng.below(256) as i32).collect());
        let alike = read(vec![rng.below(256) as i32; 48]);
        assert!(alike < others, "{family}: {alike} and {others}");
    }
}

/// Each row chooses 3 of a layer's 8 experts; rows of one step read a shared expert once.
#[test]
fn experts_that_rows_share_are_read_once() {
    let set = options(Isa::detect());
    let read = |chunk: usize| {
        let decoder = load("qwen3moe", &set);
        let request = Request {
            prompt: (0..16).collect(),
            new_tokens: 1,
            sampling: GREEDY,
            logprobs: 0,
        };
        run(&decoder, &set, &[request], || chunk);
        decoder.experts_read()
    };
    let layers = 2;
    assert_eq!(read(1), 16 * layers * 3);
    assert!((layers * 3..=layers * 8).contains(&read(16)));
}

fn load_error(spec: &Value, weights: &Value, path: &std::path::Path) -> String {
    let set = options(Isa::detect());
    match Decoder::load(&spec.to_string(), &weights.to_string(), path, &set) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn experts_that_cannot_be_are_refused() {
    let (good, weights) = spec("qwen3moe");
    let cases = [
        ("/experts", json!(0), "experts = 0 is out of range"),
        ("/experts", json!(1u64 << 31), "experts = 2147483648"),
        ("/experts", json!(4), "[8, 32]"),
        ("/experts", json!(9), "experts.8."),
        ("/experts_per_token", json!(0), "experts_per_token = 0 of 8"),
        ("/experts_per_token", json!(9), "experts_per_token = 9 of 8"),
        ("/expert/intermediate", json!(0), "intermediate = 0"),
        ("/expert/intermediate", json!(41), "[40, 32]"),
        (
            "/router/groups",
            json!({"count": 3, "keep": 1, "by": "max"}),
            "1 of 3 groups of 8 experts",
        ),
        (
            "/router/groups",
            json!({"count": 0, "keep": 0, "by": "max"}),
            "0 of 0 groups",
        ),
        (
            "/router/groups",
            json!({"count": 4, "keep": 1, "by": "top2_sum"}),
            "do not give 3 experts",
        ),
        ("/router/score", json!("relu"), "relu"),
        ("/router/bias", json!(true), "router_bias"),
        ("/router/correction", json!(true), "router_correction"),
        (
            "/shared",
            json!({"kind": "gated", "intermediate": 8, "activation": "silu"}),
            "gate",
        ),
        (
            "/expert",
            good["kinds"][0]["feed_forward"].clone(),
            "mixtures themselves",
        ),
    ];
    for (at, value, said) in cases {
        let mut bad = good.clone();
        let (parent, key) = at.rsplit_once('/').unwrap();
        let parent = format!("/kinds/0/feed_forward{parent}");
        bad.pointer_mut(&parent).unwrap()[key] = value;
        let message = load_error(&bad, &weights, &checkpoint("qwen3moe"));
        assert!(
            message.contains(said),
            "{at}: {message:?} does not say {said:?}"
        );
    }
}

/// Writes a copy of a checkpoint with one tensor changed.
fn changed(name: &str, tensor: &str, change: impl Fn(&mut Stored)) -> Scratch {
    let scratch = Scratch::new(&tensor.replace('.', "-"));
    let mut all = tensors(name);
    change(all.iter_mut().find(|t| t.name == tensor).unwrap());
    scratch.write(&all);
    scratch
}

#[test]
fn routers_and_experts_that_are_no_numbers_are_named() {
    let (spec, weights) = spec("qwen2moe");
    for tensor in [
        "model.layers.1.mlp.gate.weight",
        "model.layers.0.mlp.experts.5.down_proj.weight",
        "model.layers.0.mlp.shared_expert.up_proj.weight",
        "model.layers.1.mlp.shared_expert_gate.weight",
    ] {
        let scratch = changed("qwen2moe", tensor, |t| {
            let end = t.bytes.len();
            t.bytes[end - 2..].fill(0xff);
        });
        let message = load_error(&spec, &weights, scratch.path());
        assert!(
            message.contains(tensor) && message.contains("not a number"),
            "{message}"
        );
    }
}

/// A stack with fewer experts than the spec, and one with shorter rows.
#[test]
fn stacks_that_do_not_fit_are_named_with_their_shape() {
    let (mut spec, weights) = spec("qwen3moe.gguf");
    spec["kinds"][0]["feed_forward"]["experts"] = json!(9);
    let message = load_error(&spec, &weights, &checkpoint("qwen3moe.gguf"));
    assert!(message.contains("blk.0.ffn_gate_exps.weight"), "{message}");
    assert!(message.contains("[8, 40, 32]"), "{message}");
}

/// Experts of a safetensors checkpoint may also be stacked, separately or with gate and up in one
/// tensor, as [inputs, outputs], with interleaved rows.
#[test]
fn stacked_fused_and_interleaved_experts_are_the_same_model() {
    let (spec, mut weights) = spec("qwen3moe");
    let (all, scratch) = (tensors("qwen3moe"), Scratch::new("fused"));
    let (experts, width, hidden) = (8, 40, 32);
    let expert = |layer: usize, e: usize, part: &str| {
        let name = format!("model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight");
        let found = all.iter().find(|t| t.name == name).unwrap();
        found
            .bytes
            .chunks_exact(2)
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    let mut stored: Vec<Stored> = all
        .iter()
        .filter(|t| !t.name.contains(".experts."))
        .cloned()
        .collect();
    for layer in 0..2 {
        let (mut fused, mut down) = (Vec::new(), Vec::new());
        for e in 0..experts {
            let (gate, up) = (expert(layer, e, "gate"), expert(layer, e, "up"));
            for input in 0..hidden {
                for row in 0..width {
                    fused.extend_from_slice(&gate[row * hidden + input]);
                    fused.extend_from_slice(&up[row * hidden + input]);
                }
            }
            down.extend(expert(layer, e, "down").concat());
        }
        let tensor = |name: &str, shape: [usize; 3], bytes| Stored {
            name: format!("layers.{layer}.{name}"),
            dtype: "F16".into(),
            shape: shape.to_vec(),
            bytes,
        };
        stored.push(tensor("gate_up", [experts, hidden, 2 * width], fused));
        stored.push(tensor("down", [experts, hidden, width], down));
        let roles = &mut weights["layers"][layer];
        let fused = |rows: [usize; 2]| {
            json!({
                "tensor": format!("layers.{layer}.gate_up"), "rows": rows, "transposed": true,
                "interleaved": 2 * width,
            })
        };
        roles["gate"] = fused([0, width]);
        roles["up"] = fused([width, 2 * width]);
        roles["down"] = json!(format!("layers.{layer}.down"));
    }
    scratch.write(&stored);
    let set = options(Isa::detect());
    let fused = Decoder::load(
        &spec.to_string(),
        &weights.to_string(),
        scratch.path(),
        &set,
    );
    let fused = common::allocated(fused.unwrap(), common::BLOCKS);
    let reference = reference("qwen3moe");
    let same = answer(&load("qwen3moe", &set), &set, &reference);
    assert!(answer(&fused, &set, &reference) == same);
}

/// Random MXFP4 codes with scales of about 1/16, as in gpt-oss, and their values in f32.
fn microscaled(name: &str, shape: [usize; 3], seed: u64) -> [Stored; 3] {
    const TWICE: [f32; 16] = [
        0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, -0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
    ];
    let ([experts, rows, inputs], mut rng) = (shape, Rng(seed));
    let groups = experts * rows * inputs / 32;
    let scales: Vec<u8> = (0..groups).map(|_| (121 + rng.below(5)) as u8).collect();
    let codes: Vec<u8> = (0..16 * groups).map(|_| rng.below(256) as u8).collect();
    let number = |i: usize| {
        let code = codes[i / 2] >> (4 * (i % 2)) & 15;
        TWICE[usize::from(code)] * f32::exp2(f32::from(scales[i / 32]) - 128.0)
    };
    let floats = (0..32 * groups).flat_map(|i| number(i).to_le_bytes());
    let stored = |name: String, dtype: &str, shape: &[usize], bytes: Vec<u8>| Stored {
        name,
        dtype: dtype.to_owned(),
        shape: shape.to_vec(),
        bytes,
    };
    let [outer, group] = [[experts, rows], [inputs / 32, 16]];
    [
        stored(name.to_owned(), "F32", &shape, floats.collect()),
        stored(
            format!("{name}_blocks"),
            "U8",
            &[outer, group].concat(),
            codes.clone(),
        ),
        stored(
            format!("{name}_scales"),
            "U8",
            &[experts, rows, inputs / 32],
            scales.clone(),
        ),
    ]
}

/// qwen3moe with stacked experts of 64 columns: recipes, and tensors as codes and as numbers.
fn microscaled_model() -> (Value, [Value; 2], Vec<Stored>) {
    let (mut spec, weights) = spec("qwen3moe");
    spec["kinds"][0]["feed_forward"]["expert"]["intermediate"] = json!(64);
    let all = tensors("qwen3moe").into_iter();
    let mut stored: Vec<Stored> = all.filter(|t| !t.name.contains(".experts.")).collect();
    let mut both = [weights.clone(), weights];
    for layer in 0..2 {
        let fused = format!("layers.{layer}.gate_up");
        let down = format!("layers.{layer}.down");
        stored.extend(microscaled(&fused, [8, 128, 32], layer));
        stored.extend(microscaled(&down, [8, 32, 64], 9 + layer));
        for (weights, codes) in both.iter_mut().zip([true, false]) {
            let recipe = |name: &str| match codes {
                true => {
                    json!({"tensor": format!("{name}_blocks"), "scales": format!("{name}_scales")})
                }
                false => json!({"tensor": name}),
            };
            let half = |rows: [usize; 2]| {
                let mut half = recipe(&fused);
                half["rows"] = json!(rows);
                half["interleaved"] = json!(128);
                half
            };
            let roles = &mut weights["layers"][layer as usize];
            roles["gate"] = half([0, 64]);
            roles["up"] = half([64, 128]);
            roles["down"] = recipe(&down);
        }
    }
    (spec, both, stored)
}

#[test]
fn codes_beside_their_scales_are_the_numbers_they_stand_for() {
    let (spec, both, stored) = microscaled_model();
    let scratch = Scratch::new("microscaled");
    scratch.write(&stored);
    let reference = reference("qwen3moe");
    let load = |weights: &Value, set: &Options| {
        let (spec, weights) = (spec.to_string(), weights.to_string());
        let decoder = Decoder::load(&spec, &weights, scratch.path(), set).unwrap();
        answer(&common::allocated(decoder, common::BLOCKS), set, &reference)
    };
    let exact = options(Isa::detect());
    let truth = load(&both[1], &exact);
    assert!(load(&both[0], &exact) == truth, "in f32");
    // As stored: the codes are exact, activations have 8 bits.
    let floats = WeightFormat::F32;
    for isa in common::isas() {
        let set = Options {
            numerics: Numerics::AsStored { floats },
            ..options(isa)
        };
        let (codes, numbers) = (load(&both[0], &set), load(&both[1], &set));
        let off = |a: &Answer| {
            let pairs = a.prompt.iter().zip(&truth.prompt);
            let off = pairs.map(|(a, b)| f64::from((a.logprob - b.logprob).abs()));
            off.sum::<f64>() / truth.prompt.len() as f64
        };
        assert!(off(&numbers) < 1e-4, "{isa}");
        assert!(off(&codes) < 0.2, "{isa}: off by {}", off(&codes));
    }
}

#[test]
fn codes_that_do_not_fit_their_scales_are_named() {
    let (spec, [codes, _], good) = microscaled_model();
    let scratch = Scratch::new("unfit-scales");
    for (name, shape, said) in [
        (
            "layers.1.down_scales",
            vec![8, 32, 1],
            "layers.1.down_scales",
        ),
        (
            "layers.1.down_scales",
            vec![8, 31, 2],
            "layers.1.down_scales",
        ),
        (
            "layers.0.gate_up_blocks",
            vec![8, 128, 16],
            "layers.0.gate_up",
        ),
        (
            "layers.0.gate_up_blocks",
            vec![8, 127, 1, 16],
            "layers.0.gate_up",
        ),
    ] {
        let mut stored = good.clone();
        let changed = stored.iter_mut().find(|t| t.name == name).unwrap();
        changed.bytes.truncate(shape.iter().product());
        changed.shape = shape;
        scratch.write(&stored);
        let message = load_error(&spec, &codes, scratch.path());
        assert!(message.contains(said), "{message}");
    }
    let mut plain = codes;
    plain["layers"][1]["down"] = json!("layers.1.down_blocks");
    scratch.write(&good);
    let message = load_error(&spec, &plain, scratch.path());
    assert!(message.contains("stored as bytes"), "{message}");
}

#[test]
fn scales_beside_codes_that_are_no_numbers_are_named() {
    let (spec, [codes, _], mut stored) = microscaled_model();
    let scratch = Scratch::new("no-number-scales");
    let name = "layers.1.down_scales";
    let scales = stored.iter_mut().find(|t| t.name == name).unwrap();
    scales.bytes[37] = 0xff;
    scratch.write(&stored);
    let start = row(&scratch.path().join("model.safetensors"), name, 18).start;
    let message = load_error(&spec, &codes, scratch.path());
    let place = format!("tensor {name:?} at byte {start} has a value in row 18 that is");
    assert!(message.contains(&place), "{message}");
}
