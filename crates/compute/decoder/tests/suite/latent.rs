//! Latent attention and matrices of 8-bit floats: valid recipes and refusals.

use crate::common;
use std::path::Path;

use crate::common::{
    Answer, BLOCKS, Compute, GREEDY, Request, Rng, Scratch, Stored, allocated, checkpoint, isas,
    options, reference, run, spec, tensors,
};
use penstock_decoder::{Decoder, DecoderError, Numerics, Options};
use penstock_kernels::Isa;
use serde_json::{Value, json};

fn load(
    spec: &Value,
    weights: &Value,
    path: &Path,
    options: &Options,
) -> Result<Decoder, DecoderError> {
    Decoder::load(&spec.to_string(), &weights.to_string(), path, options)
}

fn answer(decoder: &impl Compute, options: &Options, prompt: &[i32]) -> Answer {
    let request = Request {
        prompt: prompt.to_vec(),
        new_tokens: 6,
        sampling: GREEDY,
        logprobs: 256,
    };
    run(decoder, options, &[request], || 40).remove(0)
}

/// Value of a byte of OCP's E4M3.
fn e4m3(byte: u8) -> f32 {
    let (sign, exponent, mantissa) = (byte >> 7, i32::from(byte >> 3 & 15), byte & 7);
    let size = match exponent {
        0 => f32::from(mantissa) / 512.0,
        _ => (1.0 + f32::from(mantissa) / 8.0) * f32::exp2((exponent - 7) as f32),
    };
    if sign == 0 { size } else { -size }
}

/// A matrix of random codes below 0.25 with scales of about 1, as codes with scales and as numbers.
fn blocked(name: &str, shape: [usize; 2], seed: u64) -> [Stored; 3] {
    let ([rows, columns], mut rng) = (shape, Rng(seed));
    let per_row = columns.div_ceil(128);
    let scales: Vec<f32> = (0..rows.div_ceil(128) * per_row)
        .map(|_| 0.5 + rng.below(1000) as f32 / 700.0)
        .collect();
    let codes: Vec<u8> = (0..rows * columns)
        .map(|_| (rng.below(0x29) | rng.below(2) << 7) as u8)
        .collect();
    let number = |i: usize| {
        let (row, column) = (i / columns, i % columns);
        e4m3(codes[i]) * scales[row / 128 * per_row + column / 128]
    };
    let floats = (0..codes.len()).flat_map(|i| number(i).to_le_bytes());
    let stored = |name: String, dtype: &str, shape: Vec<usize>, bytes: Vec<u8>| Stored {
        name,
        dtype: dtype.to_owned(),
        shape,
        bytes,
    };
    [
        stored(name.to_owned(), "F32", shape.to_vec(), floats.collect()),
        stored(name.to_owned(), "F8_E4M3", shape.to_vec(), codes.clone()),
        stored(
            format!("{name}_scale_inv"),
            "F32",
            vec![rows.div_ceil(128), per_row],
            scales.iter().flat_map(|s| s.to_le_bytes()).collect(),
        ),
    ]
}

/// deepseek3 with dense layers of 200 columns and its usual matrices in 8-bit floats: spec,
/// recipes, tensors with codes and tensors with numbers.
fn eight_bits() -> (Value, Value, [Vec<Stored>; 2]) {
    let (mut spec, mut weights) = spec("deepseek3");
    spec["kinds"][0]["feed_forward"]["intermediate"] = json!(200);
    let hidden = spec["hidden"].as_u64().unwrap() as usize;
    let [mut codes, mut numbers] = [Vec::new(), Vec::new()];
    let mut rest = tensors("deepseek3");
    let dense = "model.layers.0.mlp.";
    let mut shapes = vec![
        (format!("{dense}gate_proj.weight"), [200, hidden]),
        (format!("{dense}up_proj.weight"), [200, hidden]),
        (format!("{dense}down_proj.weight"), [hidden, 200]),
    ];
    let converted = |t: &Stored| {
        let own = ["_proj.weight", "_mqa.weight"]
            .iter()
            .any(|end| t.name.ends_with(end));
        own && !t.name.starts_with(dense)
    };
    for t in rest.iter().filter(|t| converted(t)) {
        shapes.push((t.name.clone(), [t.shape[0], t.shape[1]]));
    }
    rest.retain(|t| !shapes.iter().any(|(name, _)| *name == t.name));
    for (seed, (name, shape)) in shapes.iter().enumerate() {
        let [floats, bytes, scales] = blocked(name, *shape, seed as u64);
        numbers.push(floats);
        codes.extend([bytes, scales]);
    }
    codes.extend(rest.clone());
    numbers.extend(rest);
    for layer in weights["layers"].as_array_mut().unwrap() {
        for (role, recipe) in layer.as_object_mut().unwrap() {
            if role.contains("norm") || role.starts_with("router") {
                continue;
            }
            if recipe.is_string() {
                *recipe = json!({ "tensor": recipe });
            }
            let scales = format!("{}_scale_inv", recipe["tensor"].as_str().unwrap());
            recipe["scales"] = json!(scales);
        }
    }
    (spec, weights, [codes, numbers])
}

#[test]
fn eight_bit_floats_are_the_numbers_they_stand_for() {
    let (spec, weights, [codes, numbers]) = eight_bits();
    let (coded, plain) = (Scratch::new("fp8"), Scratch::new("fp8-numbers"));
    coded.write(&codes);
    plain.write(&numbers);
    let prompt = reference("deepseek3").tokens;
    for isa in isas() {
        for numerics in [Numerics::Exact, Numerics::Int8, Numerics::Int4] {
            let set = Options {
                numerics,
                ..options(isa)
            };
            let [got, want] = [&coded, &plain].map(|scratch| {
                let decoder = load(&spec, &weights, scratch.path(), &set).unwrap();
                answer(&allocated(decoder, BLOCKS), &set, &prompt)
            });
            assert!(got == want, "{numerics:?} on {isa}");
        }
    }
}

#[test]
fn scales_that_do_not_fit_are_named() {
    let (spec, weights, [codes, _]) = eight_bits();
    let set = options(Isa::detect());
    let name = "model.layers.0.mlp.down_proj.weight_scale_inv";
    let scratch = Scratch::new("fp8-scales");
    let refused = |what: &str, change: &dyn Fn(&mut Stored)| {
        let mut all = codes.clone();
        change(all.iter_mut().find(|t| t.name == name).unwrap());
        scratch.write(&all);
        let error = load(&spec, &weights, scratch.path(), &set).err().unwrap();
        let message = error.to_string();
        assert!(message.contains(name), "{what}: {message}");
    };
    refused("missing", &|t| t.name.push('x'));
    refused("turned", &|t| t.shape.reverse());
    refused("not a number", &|t| t.bytes[4..8].fill(0xff));
    let bare = common::spec("deepseek3").1;
    scratch.write(&codes);
    let message = load(&spec, &bare, scratch.path(), &set).err().unwrap();
    assert!(message.to_string().contains("8-bit floats"), "{message}");
}

/// Keys and values projected from the latent by one matrix, and by a stack for each.
#[test]
fn what_is_made_of_the_latent_may_be_split() {
    let (spec, mut weights) = spec("deepseek2");
    let mut all = tensors("deepseek2");
    let (heads, plain, value, rank) = (4, 24, 20, 40);
    for layer in 0..3 {
        let name = format!("model.layers.{layer}.self_attn.kv_b_proj.weight");
        let at = all.iter().position(|t| t.name == name).unwrap();
        let whole = all.remove(at);
        let item = |row: usize, column: usize| {
            let at = 2 * (row * rank + column);
            [whole.bytes[at], whole.bytes[at + 1]]
        };
        let mut stacks = [Vec::new(), Vec::new()];
        for head in 0..heads {
            let first = head * (plain + value);
            for column in 0..rank {
                stacks[0].extend((0..plain).flat_map(|row| item(first + row, column)));
            }
            for row in first + plain..first + plain + value {
                stacks[1].extend((0..rank).flat_map(|column| item(row, column)));
            }
        }
        let shapes = [[heads, rank, plain], [heads, value, rank]];
        let roles = weights["layers"][layer].as_object_mut().unwrap();
        roles.remove("kv_b");
        for ((role, shape), bytes) in ["k_b", "v_b"].into_iter().zip(shapes).zip(stacks) {
            let name = format!("layers.{layer}.{role}");
            roles.insert(role.to_owned(), json!(name));
            all.push(Stored {
                name,
                dtype: whole.dtype.clone(),
                shape: shape.to_vec(),
                bytes,
            });
        }
    }
    let scratch = Scratch::new("split-latent");
    scratch.write(&all);
    let (set, prompt) = (options(Isa::detect()), reference("deepseek2").tokens);
    let split = load(&spec, &weights, scratch.path(), &set).unwrap();
    let whole = common::load("deepseek2", &set);
    let same = answer(&whole, &set, &prompt);
    assert!(answer(&allocated(split, BLOCKS), &set, &prompt) == same);
}

#[test]
fn what_cannot_be_is_refused() {
    let (good, weights) = spec("deepseek3");
    let cases = [
        ("/heads", json!(0), "mixer.heads = 0"),
        ("/heads", json!(6), "[192, 56]"),
        ("/query_rank", json!(0), "mixer.query_rank = 0"),
        ("/query_rank", json!(57), "implies [57]"),
        ("/kv_rank", json!(0), "mixer.kv_rank = 0"),
        ("/kv_rank", json!(1u64 << 31), "mixer.kv_rank = 2147483648"),
        ("/plain_dim", json!(21), "[165, 56]"),
        ("/rope_dim", json!(0), "mixer.rope_dim = 0"),
        ("/rope_dim", json!(11), "rotation of 11 numbers"),
        ("/value_dim", json!(25), "[225, 40]"),
        ("/scale", json!(-1.0), "mixer.scale = -1"),
        ("/window", json!(8), "window"),
    ];
    for (at, value, said) in cases {
        let mut bad = good.clone();
        let key = at.trim_start_matches('/');
        for kind in bad["kinds"].as_array_mut().unwrap() {
            kind["mixer"][key] = value.clone();
        }
        let set = options(Isa::detect());
        let error = load(&bad, &weights, &checkpoint("deepseek3"), &set).err();
        let message = error.unwrap().to_string();
        assert!(
            message.contains(said),
            "{at}: {message:?} does not say {said:?}"
        );
    }
}
