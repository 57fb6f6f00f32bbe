//! Peak memory of a load: the checkpoint's pages and the packed weights are never resident at the
//! same time. The only test in its process, because the peak is per process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[path = "suite/common/mod.rs"]
mod common;

use common::{Rng, Scratch, Stored, options, spec};
use penstock_decoder::{Decoder, Numerics, Options};
use penstock_kernels::{Isa, KvType, WeightFormat};
use serde_json::{Value, json};

const LAYERS: usize = 8;
const EXPERTS: usize = 16;
const HIDDEN: usize = 1024;
const WIDTH: usize = 384;
/// Bytes of the experts of a layer, as bf16.
const LAYER: usize = 3 * EXPERTS * HIDDEN * WIDTH * 2;

/// `qwen3moe` with wide stacked experts, and the tensors that it needs.
fn wide_model() -> (Value, Value, Vec<Stored>) {
    let (mut spec, recipes) = spec("qwen3moe");
    spec["hidden"] = json!(HIDDEN);
    spec["layers"] = json!(vec![0; LAYERS]);
    let moe = &mut spec["kinds"][0]["feed_forward"];
    moe["experts"] = json!(EXPERTS);
    moe["expert"]["intermediate"] = json!(WIDTH);
    let mixer = &spec["kinds"][0]["mixer"];
    let size = |key: &str| mixer[key].as_u64().unwrap() as usize;
    let [heads, kv_heads, dim] = ["heads", "kv_heads", "head_dim"].map(size);
    let vocab = spec["vocab"].as_u64().unwrap() as usize;
    let mut rng = Rng(1);
    let mut stored = Vec::new();
    let mut tensor = |name: &str, shape: &[usize]| {
        let count: usize = shape.iter().product();
        // Numbers below 0.01, of both signs.
        let values = (0..count).map(|_| (0x3b00 | rng.below(0x20) | rng.below(2) << 15) as u16);
        stored.push(Stored {
            name: name.to_owned(),
            dtype: "BF16".into(),
            shape: shape.to_vec(),
            bytes: values.flat_map(u16::to_le_bytes).collect(),
        });
        json!(name)
    };
    let mut weights = recipes;
    weights["embed"] = tensor("embed", &[vocab, HIDDEN]);
    weights["head"] = tensor("head", &[vocab, HIDDEN]);
    weights["final_norm"] = tensor("norm", &[HIDDEN]);
    let layer = |i: usize| {
        let mut tensor = |role: &str, shape: &[usize]| tensor(&format!("layers.{i}.{role}"), shape);
        json!({
            "mixer_norm": tensor("mixer_norm", &[HIDDEN]),
            "q": tensor("q", &[heads * dim, HIDDEN]),
            "k": tensor("k", &[kv_heads * dim, HIDDEN]),
            "v": tensor("v", &[kv_heads * dim, HIDDEN]),
            "q_norm": tensor("q_norm", &[dim]),
            "k_norm": tensor("k_norm", &[dim]),
            "o": tensor("o", &[HIDDEN, heads * dim]),
            "feed_forward_norm": tensor("feed_forward_norm", &[HIDDEN]),
            "router": tensor("router", &[EXPERTS, HIDDEN]),
            "gate": tensor("gate", &[EXPERTS, WIDTH, HIDDEN]),
            "up": tensor("up", &[EXPERTS, WIDTH, HIDDEN]),
            "down": tensor("down", &[EXPERTS, HIDDEN, WIDTH]),
        })
    };
    weights["layers"] = (0..LAYERS).map(layer).collect();
    (spec, weights, stored)
}

/// A field of /proc/self/status in kB, converted to bytes.
fn status(key: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        << 10
}

#[test]
fn a_checkpoint_is_never_twice_in_memory() {
    let scratch = Scratch::new("resident");
    let (spec, weights, stored) = wide_model();
    scratch.write(&stored);
    drop(stored);
    let set = Options {
        threads: 2,
        numerics: Numerics::AsStored {
            floats: WeightFormat::Bf16,
        },
        kv: KvType::Bf16,
        ..options(Isa::detect())
    };
    // Resets the peak (proc(5)).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    let (spec, weights) = (spec.to_string(), weights.to_string());
    let decoder = Decoder::load(&spec, &weights, scratch.path(), &set).unwrap();
    let (peak, after) = (status("VmHWM:") - before, status("VmRSS:") - before);
    println!(
        "experts of {} MB: peak {} MB, after loading {} MB",
        (LAYERS * LAYER) >> 20,
        peak >> 20,
        after >> 20
    );
    assert!(
        after >= LAYERS * LAYER,
        "{after} bytes hold no packed model"
    );
    assert!(
        peak <= after + 2 * LAYER,
        "{peak} bytes at most, {after} after loading: over two layers of {LAYER} more"
    );
    drop(decoder);
}
