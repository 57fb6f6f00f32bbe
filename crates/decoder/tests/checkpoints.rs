//! Checkpoints that do not fit their spec, and rows stored in another order.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{
    GREEDY, Request, Scratch, Stored, checkpoint, isas, options, reference, run, spec, tensors,
};
use penstock_decoder::{Decoder, DecoderError};
use penstock_kernels::Isa;
use proptest::prelude::*;
use serde_json::{Value, json};

fn load(spec: &Value, names: &Value, path: &Path) -> Result<Decoder, DecoderError> {
    Decoder::load(
        &spec.to_string(),
        &names.to_string(),
        path,
        &options(Isa::detect()),
    )
}

fn load_error(spec: &Value, names: &Value, path: &Path) -> String {
    match load(spec, names, path) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_missing_tensor_is_named() {
    let (spec, names) = spec("qwen2");
    let all = tensors("qwen2");
    let scratch = Scratch::new("missing");
    assert!(all.len() > 20);
    for gone in &all {
        let rest: Vec<Stored> = all
            .iter()
            .filter(|t| t.name != gone.name)
            .cloned()
            .collect();
        scratch.write(&rest);
        let message = load_error(&spec, &names, scratch.path());
        assert!(
            message.contains(&gone.name),
            "{message:?} does not name {}",
            gone.name
        );
    }
}

#[test]
fn every_wrong_shape_is_named_with_the_right_one() {
    let (spec, names) = spec("qwen3");
    let all = tensors("qwen3");
    let scratch = Scratch::new("shapes");
    for (i, good) in all.iter().enumerate() {
        let mut changed = all.clone();
        // One row (or item) less, with bytes that fit: the file itself is sound.
        changed[i].shape[0] -= 1;
        let bytes = changed[i].bytes.len() / good.shape[0] * changed[i].shape[0];
        changed[i].bytes.truncate(bytes);
        scratch.write(&changed);
        let message = load_error(&spec, &names, scratch.path());
        let (found, expected) = (
            format!("{:?}", changed[i].shape),
            format!("{:?}", good.shape),
        );
        assert!(
            message.contains(&good.name) && message.contains(&found) && message.contains(&expected),
            "{message}"
        );
    }
}

#[test]
fn a_transposed_matrix_is_not_taken() {
    let (spec, names) = spec("qwen3");
    let mut all = tensors("qwen3");
    let gate = all
        .iter_mut()
        .find(|t| t.name.ends_with("mlp.gate_proj.weight"))
        .unwrap();
    gate.shape.reverse();
    let name = gate.name.clone();
    let scratch = Scratch::new("transposed");
    scratch.write(&all);
    assert!(load_error(&spec, &names, scratch.path()).contains(&name));
}

#[test]
fn truncated_files_are_errors_with_the_file_named() {
    let scratch = Scratch::new("truncated");
    for (name, file) in [
        ("llama", "llama/model.safetensors"),
        ("llama3.gguf", "llama3.gguf"),
    ] {
        let (spec, names) = spec(name);
        let bytes = std::fs::read(checkpoint(file)).unwrap();
        let path = scratch.path().join(Path::new(file).file_name().unwrap());
        for keep in (0..40)
            .map(|i| bytes.len() * i / 40)
            .chain([1, 7, 8, 9, bytes.len() - 1])
        {
            std::fs::write(&path, &bytes[..keep]).unwrap();
            let message = load_error(&spec, &names, &path);
            assert!(
                message.contains(path.to_str().unwrap()),
                "{keep} bytes: {message}"
            );
        }
    }
}

#[test]
fn a_missing_shard_is_an_error() {
    let (spec, names) = spec("mistral");
    let scratch = Scratch::new("shard");
    for file in [
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
    ] {
        std::fs::copy(checkpoint("mistral").join(file), scratch.path().join(file)).unwrap();
    }
    assert!(load_error(&spec, &names, scratch.path()).contains("model-00002-of-00002.safetensors"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A flipped byte in a header gives another model or an error, never a panic.
    #[test]
    fn damaged_headers_do_not_panic(at in 0usize..3000, value in any::<u8>(), gguf in any::<bool>()) {
        let (name, file) = if gguf { ("llama3.gguf", "llama3.gguf") } else { ("llama", "llama/model.safetensors") };
        let (spec, names) = spec(name);
        let mut bytes = std::fs::read(checkpoint(file)).unwrap();
        bytes[at] = value;
        let scratch = Scratch::new(if gguf { "flipped-gguf" } else { "flipped" });
        let path = scratch.path().join(Path::new(file).file_name().unwrap());
        std::fs::write(&path, &bytes).unwrap();
        drop(load(&spec, &names, &path));
    }
}

#[test]
fn specs_that_cannot_be_are_named() {
    let (good, names) = spec("llama");
    let path = checkpoint("llama");
    let cases: [(&str, Value, &str); 9] = [
        ("/layers", json!(0), "layers = 0"),
        ("/hidden", json!(1u64 << 40), "hidden"),
        (
            "/attention/kv_heads",
            json!(4),
            "6 query heads do not share 4",
        ),
        ("/attention/head_dim", json!(15), "head_dim = 15 is odd"),
        ("/attention/windows", json!([null]), "attention.windows"),
        ("/attention/windows", json!([0, 4]), "attention.windows"),
        ("/rope/scaling", json!({"kind": "yarn"}), "yarn"),
        ("/rope/scaling", json!({"kind": "factors"}), "rope_factors"),
        ("/mlp/kind", json!("gelu"), "gelu"),
    ];
    for (at, value, what) in cases {
        let mut spec = good.clone();
        *spec.pointer_mut(at).unwrap() = value;
        let message = load_error(&spec, &names, &path);
        assert!(
            message.contains(what),
            "{at}: {message:?} does not say {what:?}"
        );
    }
    let mut unknown = good.clone();
    unknown["experts"] = json!(8);
    assert!(load_error(&unknown, &names, &path).contains("experts"));
    let (mut untied, mut biased) = (good.clone(), good);
    untied["tied_embeddings"] = json!(false);
    assert!(load_error(&untied, &names, &path).contains("names.head"));
    biased["attention"]["qkv_bias"] = json!(true);
    assert!(load_error(&biased, &names, &path).contains("q_bias"));
}

/// Reorders the rows of each head so that the halves of a rotation pair become neighbours, as GGUF
/// stores Llama's queries and keys.
fn interleave(tensor: &mut Stored, head_dim: usize) {
    let rows = tensor.shape[0];
    let size = tensor.bytes.len() / rows;
    let source = |row: usize| {
        let (head, i) = (row / head_dim * head_dim, row % head_dim);
        head + i / 2 + i % 2 * (head_dim / 2)
    };
    tensor.bytes = (0..rows)
        .flat_map(|row| tensor.bytes[source(row) * size..][..size].to_vec())
        .collect();
}

#[test]
fn interleaved_rows_and_biases_give_the_same_model() {
    let (spec, mut names) = spec("qwen2");
    let head_dim = spec["attention"]["head_dim"].as_u64().unwrap() as usize;
    let mut all = tensors("qwen2");
    for tensor in &mut all {
        if tensor.name.contains("q_proj") || tensor.name.contains("k_proj") {
            interleave(tensor, head_dim);
        }
    }
    assert_eq!(
        all.iter()
            .filter(|t| t.name.contains("k_proj.bias"))
            .count(),
        2
    );
    let scratch = Scratch::new("interleaved");
    scratch.write(&all);
    let reference = reference("qwen2");
    let request = Request {
        prompt: reference.tokens,
        new_tokens: 16,
        sampling: GREEDY,
        logprobs: 256,
    };
    for isa in isas() {
        let options = options(isa);
        let answer = |names: &Value, path: &Path| {
            let decoder =
                Decoder::load(&spec.to_string(), &names.to_string(), path, &options).unwrap();
            run(&decoder, &options, std::slice::from_ref(&request), || 100).remove(0)
        };
        names["rope_rows_interleaved"] = json!(false);
        let plain = answer(&names, &checkpoint("qwen2"));
        names["rope_rows_interleaved"] = json!(true);
        assert_eq!(answer(&names, scratch.path()), plain, "{isa}");
        assert_eq!(plain.tokens, reference.greedy);
    }
}
