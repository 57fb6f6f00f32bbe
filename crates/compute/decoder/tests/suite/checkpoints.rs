//! Checkpoints that do not match their spec, and rows stored in a different order.

use crate::common;
use std::path::Path;

use crate::common::{
    BLOCKS, GREEDY, NUMERICS, Request, Scratch, Stored, allocated, checkpoint, isas, options,
    reference, run, spec, tensors,
};
use penstock_decoder::{Decoder, DecoderError, Options};
use penstock_kernels::Isa;
use proptest::prelude::*;
use serde_json::{Value, json};

fn load(spec: &Value, weights: &Value, path: &Path) -> Result<Decoder, DecoderError> {
    Decoder::load(
        &spec.to_string(),
        &weights.to_string(),
        path,
        &options(Isa::detect()),
    )
}

fn load_error(spec: &Value, weights: &Value, path: &Path) -> String {
    match load(spec, weights, path) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn every_missing_tensor_is_named() {
    let (spec, weights) = spec("qwen2");
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
        let message = load_error(&spec, &weights, scratch.path());
        assert!(
            message.contains(&gone.name),
            "{message:?} does not name {}",
            gone.name
        );
    }
}

#[test]
fn every_wrong_shape_is_named_with_the_right_one() {
    let (spec, weights) = spec("qwen3");
    let all = tensors("qwen3");
    let scratch = Scratch::new("shapes");
    for (i, good) in all.iter().enumerate() {
        let mut changed = all.clone();
        // One row (or item) fewer, with matching bytes: the file itself is valid.
        changed[i].shape[0] -= 1;
        let bytes = changed[i].bytes.len() / good.shape[0] * changed[i].shape[0];
        changed[i].bytes.truncate(bytes);
        scratch.write(&changed);
        let message = load_error(&spec, &weights, scratch.path());
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
fn a_tensor_with_values_that_are_not_finite_is_named() {
    for family in ["qwen2", "gpt2"] {
        let (spec, weights) = spec(family);
        let all = tensors(family);
        let scratch = Scratch::new("not-finite");
        for i in 0..all.len() {
            let mut changed = all.clone();
            // The last value; all ones are NaN in every type.
            let size = all[i].bytes.len() / all[i].shape.iter().product::<usize>();
            let end = all[i].bytes.len();
            changed[i].bytes[end - size..].fill(0xff);
            scratch.write(&changed);
            for (numerics, kv) in NUMERICS {
                let options = Options {
                    numerics,
                    kv,
                    ..options(Isa::detect())
                };
                let loaded = Decoder::load(
                    &spec.to_string(),
                    &weights.to_string(),
                    scratch.path(),
                    &options,
                );
                let Err(error) = loaded else {
                    panic!("{} was loaded as {numerics:?}", all[i].name);
                };
                let message = error.to_string();
                assert!(
                    message.contains(&format!("{:?}", all[i].name))
                        && message.contains("not a number"),
                    "{message}"
                );
            }
        }
    }
}

#[test]
fn a_hidden_state_that_overflows_gives_no_token() {
    let (spec, weights) = spec("llama3");
    let mut all = tensors("llama3");
    let ends = ["0.mlp.up_proj.weight", "0.mlp.down_proj.weight"];
    let large = |t: &&mut Stored| ends.iter().any(|end| t.name.ends_with(end));
    for tensor in all.iter_mut().filter(large) {
        assert_eq!(tensor.dtype, "F32");
        tensor.bytes = 1e38f32.to_le_bytes().repeat(tensor.bytes.len() / 4);
    }
    let scratch = Scratch::new("overflow");
    scratch.write(&all);
    let options = options(Isa::detect());
    let decoder = allocated(load(&spec, &weights, scratch.path()).unwrap(), BLOCKS);
    let request = Request {
        prompt: vec![1, 2, 3],
        new_tokens: 1,
        sampling: GREEDY,
        logprobs: 0,
    };
    let answers = run(&decoder, &options, &[request], || 8);
    assert_eq!(answers[0].tokens, [-1]);
}

#[test]
fn a_transposed_matrix_is_not_taken() {
    let (spec, weights) = spec("qwen3");
    let mut all = tensors("qwen3");
    let gate = all
        .iter_mut()
        .find(|t| t.name.ends_with("mlp.gate_proj.weight"))
        .unwrap();
    gate.shape.reverse();
    let name = gate.name.clone();
    let scratch = Scratch::new("transposed");
    scratch.write(&all);
    assert!(load_error(&spec, &weights, scratch.path()).contains(&name));
}

#[test]
fn truncated_files_are_errors_with_the_file_named() {
    let scratch = Scratch::new("truncated");
    for (name, file) in [
        ("llama", "llama/model.safetensors"),
        ("llama3.gguf", "llama3.gguf"),
    ] {
        let (spec, weights) = spec(name);
        let bytes = std::fs::read(checkpoint(file)).unwrap();
        let path = scratch.path().join(Path::new(file).file_name().unwrap());
        for keep in (0..40)
            .map(|i| bytes.len() * i / 40)
            .chain([1, 7, 8, 9, bytes.len() - 1])
        {
            std::fs::write(&path, &bytes[..keep]).unwrap();
            let message = load_error(&spec, &weights, &path);
            assert!(
                message.contains(path.to_str().unwrap()),
                "{keep} bytes: {message}"
            );
        }
    }
}

#[test]
fn a_missing_shard_is_an_error() {
    let (spec, weights) = spec("mistral");
    let scratch = Scratch::new("shard");
    for file in [
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
    ] {
        std::fs::copy(checkpoint("mistral").join(file), scratch.path().join(file)).unwrap();
    }
    assert!(
        load_error(&spec, &weights, scratch.path()).contains("model-00002-of-00002.safetensors")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A flipped byte in a header gives a different model or an error, never a panic.
    #[test]
    fn damaged_headers_do_not_panic(
        at in 0usize..3000, value in any::<u8>(), gguf in any::<bool>(),
    ) {
        let (name, file) = match gguf {
            true => ("llama3.gguf", "llama3.gguf"),
            false => ("llama", "llama/model.safetensors"),
        };
        let (spec, weights) = spec(name);
        let mut bytes = std::fs::read(checkpoint(file)).unwrap();
        bytes[at] = value;
        let scratch = Scratch::new(if gguf { "flipped-gguf" } else { "flipped" });
        let path = scratch.path().join(Path::new(file).file_name().unwrap());
        std::fs::write(&path, &bytes).unwrap();
        drop(load(&spec, &weights, &path));
    }
}

fn with(spec: &Value, at: &str, value: &Value) -> Value {
    let mut spec = spec.clone();
    let (parent, key) = at.rsplit_once('/').unwrap();
    spec.pointer_mut(parent).unwrap()[key] = value.clone();
    spec
}

#[test]
fn specs_that_cannot_be_are_named() {
    let (good, weights) = spec("llama");
    let path = checkpoint("llama");
    let mixer = "/kinds/0/mixer";
    let cases: [(&str, Value, &str); 17] = [
        ("/layers", json!([]), "layers = 0"),
        ("/layers", json!([0, 1]), "a layer is of kind 1"),
        ("/hidden", json!(1u64 << 40), "hidden"),
        ("/mixer/kv_heads", json!(4), "6 query heads do not share 4"),
        ("/mixer/head_dim", json!(15), "15 numbers of a head of 15"),
        ("/mixer/window", json!(0), "mixer.window = 0"),
        ("/mixer/chunk", json!(0), "mixer.chunk = 0"),
        ("/mixer/softcap", json!(0.0), "mixer.softcap = 0"),
        ("/final_softcap", json!(-1.0), "final_softcap = -1"),
        ("/mixer/rope/dims", json!(18), "18 numbers of a head of 16"),
        ("/mixer/rope/scaling", json!({"kind": "ntk"}), "ntk"),
        (
            "/mixer/rope/scaling",
            json!({"kind": "longrope", "divisors": [1, 2], "attention_factor": 1}),
            "2 divisors for 8 pairs",
        ),
        ("/mixer/sinks", json!(true), "weight recipe for the sinks"),
        (
            "/mixer/rope/scaling",
            json!({"kind": "factors"}),
            "rope_factors",
        ),
        ("/feed_forward/kind", json!("geglu"), "geglu"),
        ("/feed_forward/intermediate", json!(0), "intermediate = 0"),
        ("/experts", json!(8), "experts"),
    ];
    for (at, value, what) in cases {
        let layer = ["/mixer", "/feed_forward"]
            .iter()
            .any(|part| at.starts_with(part));
        let at = if layer {
            format!("/kinds/0{at}")
        } else {
            at.to_owned()
        };
        let message = load_error(&with(&good, &at, &value), &weights, &path);
        assert!(
            message.contains(what),
            "{at}: {message:?} does not say {what:?}"
        );
    }
    let untied = with(&good, "/tied_embeddings", &json!(false));
    assert!(load_error(&untied, &weights, &path).contains("recipe for the head"));
    let biased = with(&good, &format!("{mixer}/qkv_bias"), &json!(true));
    assert!(load_error(&biased, &weights, &path).contains("q_bias"));
    let learned = with(&good, "/learned_positions", &json!(true));
    assert!(load_error(&learned, &weights, &path).contains("positions"));
    let plain = with(&good, "/layers", &json!([0]));
    assert!(load_error(&plain, &weights, &path).contains("recipes of 2 layers for a decoder of 1"));
}

/// Layers that a spec can express and this decoder does not support, as Python's model package
/// writes them (tests/model/test_spec.py). Each is refused by name.
#[test]
fn features_that_are_not_built_are_refused_by_name() {
    let (good, weights) = spec("llama");
    let text = std::fs::read_to_string(common::fixtures().join("unsupported.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() >= 10);
    for case in cases {
        let layers = [good["kinds"][0].clone(), case["layer"].clone()];
        let mut spec = with(&good, "/kinds", &json!(layers));
        spec["layers"] = json!([0, 1]);
        let message = load_error(&spec, &weights, &checkpoint("llama"));
        let feature = case["refused"].as_str().unwrap();
        assert_eq!(message, format!("{feature} is not supported yet"));
    }
}

/// Reorders the rows of each head so that the items of a rotation pair become adjacent, as in GGUF
/// files of Llama's queries and keys.
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
    let (spec, mut weights) = spec("qwen2");
    let head_dim = spec["kinds"][0]["mixer"]["head_dim"].as_u64().unwrap() as usize;
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
    change(&mut weights, |role, recipe| {
        if ["q", "k", "q_bias", "k_bias"].contains(&role) {
            recipe["interleaved"] = json!(head_dim);
        }
    });
    same_model("qwen2", &weights, scratch.path());
}

/// Changes every recipe of every layer, expanded to an object.
fn change(weights: &mut Value, mut to: impl FnMut(&str, &mut Value)) {
    for layer in weights["layers"].as_array_mut().unwrap() {
        for (role, recipe) in layer.as_object_mut().unwrap() {
            if recipe.is_string() {
                *recipe = json!({"tensor": recipe});
            }
            to(role, recipe);
        }
    }
}

/// Asserts that the tensors at `path`, read by `weights`, give bit for bit the answers of the tiny
/// checkpoint `name`.
fn same_model(name: &str, weights: &Value, path: &Path) {
    let (spec, plain) = spec(name);
    let reference = reference(name);
    let request = Request {
        prompt: reference.tokens,
        new_tokens: 16,
        sampling: GREEDY,
        logprobs: 256,
    };
    for isa in isas() {
        for (numerics, kv) in [NUMERICS[0], NUMERICS[3]] {
            let options = Options {
                numerics,
                kv,
                ..options(isa)
            };
            let answer = |weights: &Value, path: &Path| {
                let (spec, weights) = (spec.to_string(), weights.to_string());
                let decoder = Decoder::load(&spec, &weights, path, &options).unwrap();
                let decoder = allocated(decoder, BLOCKS);
                run(&decoder, &options, std::slice::from_ref(&request), || 100).remove(0)
            };
            let whole = answer(&plain, &checkpoint(name));
            assert_eq!(answer(weights, path), whole, "{isa} {numerics:?}");
            if numerics == NUMERICS[0].0 {
                assert_eq!(whole.tokens, reference.greedy);
            }
        }
    }
}

fn transposed(tensor: &Stored) -> Stored {
    let (rows, cols) = (tensor.shape[0], tensor.shape[1]);
    let size = tensor.bytes.len() / (rows * cols);
    let item = |row: usize, col: usize| &tensor.bytes[(row * cols + col) * size..][..size];
    let items = (0..cols).flat_map(|col| (0..rows).flat_map(move |row| item(row, col)));
    Stored {
        shape: vec![cols, rows],
        bytes: items.copied().collect(),
        ..tensor.clone()
    }
}

/// One tensor with the rows of all `parts`, concatenated.
fn stacked(parts: &[Stored]) -> Stored {
    let mut whole = parts[0].clone();
    whole.shape[0] *= parts.len();
    whole.bytes = parts.iter().flat_map(|p| p.bytes.clone()).collect();
    whole
}

/// Every layout that a recipe can express gives the same model: the tensors of both layers
/// concatenated, stacked like experts, or sliced as rows, as columns, or as columns of a transposed
/// tensor.
#[test]
fn stacked_sliced_and_transposed_tensors_give_the_same_model() {
    let (_, plain) = spec("qwen3");
    let all = tensors("qwen3");
    let roles: Vec<&String> = plain["layers"][0].as_object().unwrap().keys().collect();
    for way in ["experts", "rows", "cols", "transposed"] {
        let (mut weights, mut stored) = (plain.clone(), all.clone());
        for &role in &roles {
            let parts: Vec<Stored> = (0..2)
                .map(|layer| {
                    let name = plain["layers"][layer][role].as_str().unwrap();
                    stored.retain(|t| t.name != name);
                    all.iter().find(|t| t.name == name).unwrap().clone()
                })
                .collect();
            let size = parts[0].shape.clone();
            let way = if size.len() == 1 && way != "experts" {
                "rows"
            } else {
                way
            };
            let mut whole = match way {
                "cols" => transposed(&stacked(&parts.iter().map(transposed).collect::<Vec<_>>())),
                "transposed" => transposed(&stacked(&parts)),
                _ => stacked(&parts),
            };
            if way == "experts" {
                whole.shape = [vec![2], size.clone()].concat();
            }
            whole.name.clone_from(role);
            stored.push(whole);
            for layer in 0..2 {
                let slice = |size: usize| [layer * size, (layer + 1) * size];
                weights["layers"][layer][role] = match way {
                    "experts" => json!({"tensor": role, "expert": layer}),
                    "cols" => json!({"tensor": role, "cols": slice(size[1])}),
                    "transposed" => {
                        json!({"tensor": role, "rows": slice(size[0]), "transposed": true})
                    }
                    _ => json!({"tensor": role, "rows": slice(size[0])}),
                };
            }
        }
        let scratch = Scratch::new("recipes");
        scratch.write(&stored);
        same_model("qwen3", &weights, scratch.path());
    }
}

#[test]
fn slices_outside_their_tensor_are_refused() {
    let (spec, weights) = spec("gpt2");
    let path = checkpoint("gpt2");
    let up = weights["layers"][1]["up"]["tensor"].as_str().unwrap();
    for (role, recipe) in [
        (
            "up",
            json!({"tensor": up, "rows": [1, 81], "transposed": true}),
        ),
        (
            "up",
            json!({"tensor": up, "rows": [80, 0], "transposed": true}),
        ),
        (
            "up",
            json!({"tensor": up, "cols": [16, 64], "transposed": true}),
        ),
        ("up", json!({"tensor": up, "expert": 0, "transposed": true})),
        ("up", json!(up)),
        (
            "v_bias",
            json!({"tensor": "transformer.h.1.attn.c_attn.bias", "rows": [97, 145]}),
        ),
        (
            "up_bias",
            json!({"tensor": "transformer.h.1.mlp.c_fc.bias", "rows": [0, 79]}),
        ),
    ] {
        let mut weights = weights.clone();
        weights["layers"][1][role] = recipe.clone();
        let message = load_error(&spec, &weights, &path);
        assert!(message.contains("has shape"), "{recipe}: {message}");
    }
}
