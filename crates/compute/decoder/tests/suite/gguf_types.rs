//! Element types of GGUF files: experts stored in each type equal the dequantised numbers of their
//! blocks, whole and partitioned between ranks.

use crate::common;
use std::path::{Path, PathBuf};

use crate::common::files::{gguf, row, stored, written};
use crate::common::ranks::{Cuts, Way, load_cut};
use crate::common::{
    Answer, BLOCKS, Compute, GREEDY, Request, Rng, Scratch, Stored, allocated, checkpoint, isas,
    options, reference, run, spec,
};
use half::f16;
use penstock_checkpoint::{Checkpoint, DType, dequantize};
use penstock_decoder::{Decoder, DecoderSpec, Numerics, Options};
use penstock_kernels::{Isa, WeightFormat};
use serde_json::{Value, json};

const FAMILY: &str = "qwen3moe.gguf";
const EXPERTS: usize = 8;
const HIDDEN: usize = 32;
/// A whole block of the types with 256 numbers.
const WIDTH: usize = 256;

/// Offsets of 16-bit scales in a block, with their magnitudes.
type Scales = &'static [(usize, f32)];

/// Types, the scales of their blocks with magnitudes that give numbers below about 0.3, and the
/// decoder's format for them.
const TYPES: [(DType, Scales, &str); 10] = [
    (DType::Q4_0, &[(0, 0.03)], "s4"),
    (DType::Q4_1, &[(0, 0.03), (2, -0.2)], "w4"),
    (DType::Q5_0, &[(0, 0.015)], "w8"),
    (DType::Q5_1, &[(0, 0.015), (2, -0.2)], "w8"),
    (DType::Q8_0, &[(0, 0.002)], "w8"),
    (DType::Iq4Nl, &[(0, 0.002)], "w8"),
    // The scale is a byte.
    (DType::Mxfp4, &[], "mx4"),
    (DType::Q4K, &[(0, 0.0006), (2, 0.004)], "w4"),
    (DType::Q5K, &[(0, 0.0003), (2, 0.004)], "w8"),
    (DType::Q6K, &[(208, 0.0001)], "w8"),
];

fn width_spec() -> (Value, Value) {
    let (mut spec, weights) = spec(FAMILY);
    spec["kinds"][0]["feed_forward"]["expert"]["intermediate"] = json!(WIDTH);
    (spec, weights)
}

/// Random blocks of a type, and their dequantised numbers.
fn random(dtype: DType, scales: Scales, name: &str, shape: [usize; 3], seed: u64) -> [Stored; 2] {
    let (count, mut rng) = (shape.iter().product(), Rng(seed));
    let mut blocks = vec![0u8; dtype.bytes_for(count).unwrap()];
    blocks.fill_with(|| rng.below(256) as u8);
    for block in blocks.chunks_exact_mut(dtype.block_bytes()) {
        for &(at, size) in scales {
            let scale = f16::from_f32(size * (1.0 + rng.below(100) as f32 / 100.0));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        if dtype == DType::Mxfp4 {
            block[0] = (121 + rng.below(4)) as u8;
        }
    }
    let mut numbers = vec![0.0; count];
    dequantize(dtype, &blocks, &mut numbers);
    assert!(
        numbers.iter().all(|n| n.is_finite() && n.abs() < 2.0),
        "{dtype}"
    );
    let floats = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    [(dtype, blocks), (DType::F32, floats)].map(|(dtype, bytes)| Stored {
        name: name.to_owned(),
        dtype: dtype.to_string(),
        shape: shape.to_vec(),
        bytes,
    })
}

/// The fixture with experts of this type, as blocks and as numbers. Rows of the hidden size are
/// shorter than a block of 256; for such types only the experts' output matrices change.
fn written_twice(scratch: &Scratch, dtype: DType, scales: Scales) -> [PathBuf; 2] {
    let checkpoint = Checkpoint::open(&checkpoint(FAMILY)).unwrap();
    let names: Vec<&str> = checkpoint
        .names()
        .filter(|name| !name.contains("_exps"))
        .collect();
    let mut both = [stored(&checkpoint, &names), stored(&checkpoint, &names)];
    for layer in 0..2 {
        for (seed, role, shape) in [
            (1, "gate", [EXPERTS, WIDTH, HIDDEN]),
            (2, "up", [EXPERTS, WIDTH, HIDDEN]),
            (3, "down", [EXPERTS, HIDDEN, WIDTH]),
        ] {
            let whole = shape[2].is_multiple_of(dtype.block_len());
            let (dtype, scales) = match whole {
                true => (dtype, scales),
                false => (DType::Q8_0, TYPES[4].1),
            };
            let name = format!("blk.{layer}.ffn_{role}_exps.weight");
            let made = random(dtype, scales, &name, shape, 10 * layer + seed);
            for (tensors, tensor) in both.iter_mut().zip(made) {
                tensors.push(tensor);
            }
        }
    }
    ["blocks.gguf", "numbers.gguf"]
        .into_iter()
        .zip(both)
        .map(|(name, tensors)| written(scratch, name, &gguf(&tensors, &[])))
        .collect::<Vec<_>>()
        .try_into()
        .unwrap()
}

fn answer(decoder: &impl Compute, set: &Options) -> Answer {
    let reference = reference(FAMILY);
    let request = Request {
        prompt: reference.tokens,
        new_tokens: reference.greedy.len(),
        sampling: GREEDY,
        logprobs: 20,
    };
    run(decoder, set, &[request], || 11).remove(0)
}

fn load(path: &Path, set: &Options) -> Decoder {
    let (spec, weights) = width_spec();
    let decoder = Decoder::load(&spec.to_string(), &weights.to_string(), path, set);
    allocated(decoder.unwrap(), BLOCKS)
}

/// Mean difference of the prompt's log-probabilities.
fn off(got: &Answer, truth: &Answer) -> f64 {
    let pairs = got.prompt.iter().zip(&truth.prompt);
    let off = pairs.map(|(a, b)| f64::from((a.logprob - b.logprob).abs()));
    off.sum::<f64>() / truth.prompt.len() as f64
}

#[test]
fn each_type_is_the_numbers_that_its_blocks_stand_for() {
    for (dtype, scales, form) in TYPES {
        let scratch = Scratch::new(&format!("type-{dtype}"));
        let [blocks, numbers] = written_twice(&scratch, dtype, scales);
        let exact = options(Isa::detect());
        let truth = answer(&load(&numbers, &exact), &exact);
        let same = answer(&load(&blocks, &exact), &exact) == truth;
        assert!(same, "{dtype} in f32");

        let (json, names) = width_spec();
        let parse = || DecoderSpec::parse(&json.to_string()).unwrap();
        let cuts = Cuts::even(&parse(), 2, 2);
        let ranks = load_cut(
            Way::Ring,
            &parse,
            &names.to_string(),
            blocks.clone(),
            &exact,
            &cuts,
        );
        let cut = off(&answer(&ranks, &exact), &truth);
        assert!(cut < 1e-3, "{dtype} cut: off by {cut}");

        for isa in isas() {
            let floats = WeightFormat::F32;
            let numerics = Numerics::AsStored { floats };
            let set = Options {
                numerics,
                ..options(isa)
            };
            let decoder = load(&blocks, &set);
            let named = &decoder.info().numerics;
            let (forms, _) = named.split_once("/int8/").unwrap_or_default();
            assert!(forms.contains(form), "{dtype} on {isa}: {named}");
            let rounded = off(&answer(&decoder, &set), &truth);
            println!("{dtype} as {named} on {isa}: off by {rounded:.4}");
            assert!(rounded < 0.2, "{dtype} on {isa}: off by {rounded}");
        }
    }
}

/// The scale of a row's last block is NaN or infinite.
#[test]
fn scales_that_are_no_numbers_are_found_to_the_row() {
    let (tensor, at) = ("blk.1.ffn_down_exps.weight", 5 * HIDDEN + 7);
    let (spec, weights) = width_spec();
    for (dtype, scales, _) in TYPES {
        let scratch = Scratch::new(&format!("scale-{dtype}"));
        let [file, _] = written_twice(&scratch, dtype, scales);
        let (good, damaged) = (std::fs::read(&file).unwrap(), row(&file, tensor, at));
        let block = damaged.end - dtype.block_bytes();
        let wrong: &[(usize, &[u8])] = match scales {
            [] => &[(0, &[0xff])],
            [(first, _)] => &[(*first, &[0x00, 0x7e]), (*first, &[0x00, 0x7c])],
            [(first, _), (second, _), ..] => &[(*first, &[0x00, 0x7e]), (*second, &[0x00, 0xfc])],
        };
        for (place, value) in wrong {
            let mut bytes = good.clone();
            bytes[block + place..block + place + value.len()].copy_from_slice(value);
            let file = written(&scratch, "damaged.gguf", &bytes);
            for (numerics, kv) in common::NUMERICS {
                let set = Options {
                    numerics,
                    kv,
                    ..options(Isa::detect())
                };
                let loaded = Decoder::load(&spec.to_string(), &weights.to_string(), &file, &set);
                let what = format!("{dtype}, {value:x?} at {place}, {numerics:?}");
                let message = loaded.err().expect(&what).to_string();
                let place = format!(" at byte {}", damaged.start);
                let named = message.contains(tensor) && message.contains(&place);
                assert!(
                    named && message.contains(&format!("in row {at} ")),
                    "{what}: {message}"
                );
            }
        }
    }
}
