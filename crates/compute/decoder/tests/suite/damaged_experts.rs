//! Damaged mixtures of experts: each error names file, tensor and byte, in both containers and in
//! split files.

use std::path::Path;

use crate::common::files::{find, parts, row, split, text, written};
use crate::common::{Scratch, checkpoint, options, spec};
use penstock_checkpoint::Checkpoint;
use penstock_decoder::Decoder;
use penstock_kernels::Isa;
use serde_json::{Value, json};

const STACK: &str = "blk.1.ffn_up_exps.weight";

/// The error of loading the weights at `path`, with the spec and recipes of the fixture `name` for
/// `experts` experts.
fn refusal(name: &str, experts: usize, path: &Path) -> String {
    let (mut spec, weights) = spec(name);
    spec["kinds"][0]["feed_forward"]["experts"] = json!(experts);
    said(&spec, &weights, path)
}

fn said(spec: &Value, weights: &Value, path: &Path) -> String {
    let (spec, weights) = (spec.to_string(), weights.to_string());
    match Decoder::load(&spec, &weights, path, &options(Isa::detect())) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

fn names(message: &str, file: &Path, tensor: &str, offset: usize) {
    let quoted = [format!("tensor {tensor:?}"), format!("tensor `{tensor}`")];
    assert!(
        message.starts_with(file.to_str().unwrap())
            && quoted.iter().any(|name| message.contains(name))
            && message.contains(&format!(" at byte {offset}")),
        "{message:?} does not name {} {tensor} {offset}",
        file.display(),
    );
}

#[test]
fn weights_that_are_no_numbers_are_found_to_the_byte() {
    let safetensors = checkpoint("qwen3moe").join("model.safetensors");
    let gguf = checkpoint("qwen3moe.gguf");
    let scratch = Scratch::new("no-number");
    for (model, file, tensor, at) in [
        (
            "qwen3moe",
            &safetensors,
            "model.layers.1.mlp.gate.weight",
            7,
        ),
        (
            "qwen3moe",
            &safetensors,
            "model.layers.0.mlp.experts.5.down_proj.weight",
            31,
        ),
        ("qwen3moe.gguf", &gguf, "blk.1.ffn_gate_inp.weight", 3),
        // The third row of expert 5.
        ("qwen3moe.gguf", &gguf, STACK, 5 * 40 + 2),
    ] {
        let mut bytes = std::fs::read(file).unwrap();
        let damaged = row(file, tensor, at);
        bytes[damaged.end - 2..damaged.end].fill(0xff);
        let file = written(
            &scratch,
            file.file_name().unwrap().to_str().unwrap(),
            &bytes,
        );
        let message = refusal(model, 8, &file);
        names(&message, &file, tensor, damaged.start);
        assert!(
            message.contains(&format!("in row {at} that is")),
            "{message}"
        );
    }
}

/// Non-finite router biases and attention sinks.
#[test]
fn biases_and_sinks_that_are_no_numbers_are_found_in_both_containers() {
    let scratch = Scratch::new("no-bias");
    for (model, tensor) in [
        (
            "deepseek3",
            "model.layers.1.mlp.gate.e_score_correction_bias",
        ),
        ("deepseek3.gguf", "blk.2.exp_probs_b.bias"),
        ("glm4moe", "model.layers.2.mlp.gate.e_score_correction_bias"),
        ("glm4moe.gguf", "blk.1.exp_probs_b.bias"),
        ("gptoss", "model.layers.0.mlp.router.bias"),
        ("gptoss.gguf", "blk.1.ffn_gate_inp.bias"),
        ("gptoss", "model.layers.1.self_attn.sinks"),
        ("gptoss.gguf", "blk.0.attn_sinks.weight"),
        ("gptoss", "model.layers.1.mlp.experts.gate_up_proj_bias"),
        ("gptoss.gguf", "blk.0.ffn_down_exps.bias"),
    ] {
        let mut file = checkpoint(model);
        if file.is_dir() {
            file.push("model.safetensors");
        }
        let mut bytes = std::fs::read(&file).unwrap();
        let damaged = row(&file, tensor, 0);
        bytes[damaged.end - 2..damaged.end].fill(0xff);
        let name = file.file_name().unwrap().to_str().unwrap();
        let file = written(&scratch, name, &bytes);
        let (spec, weights) = spec(model);
        let message = said(&spec, &weights, &file);
        names(&message, &file, tensor, damaged.start);
        assert!(message.contains("not a number"), "{message}");
    }
}

#[test]
fn a_stack_of_fewer_experts_is_found_in_its_part() {
    let gguf = checkpoint("qwen3moe.gguf");
    let message = refusal("qwen3moe.gguf", 9, &gguf);
    let stack = "blk.0.ffn_gate_exps.weight";
    names(&message, &gguf, stack, row(&gguf, stack, 0).start);
    assert!(message.contains("[8, 40, 32]") && message.contains("implies [9, 40, 32]"));

    let scratch = Scratch::new("split-experts");
    let [first, part] = split(&scratch, &parts(&gguf, 3), stack);
    assert_ne!(first, part);
    let message = refusal("qwen3moe.gguf", 9, &first);
    let offset = row(&first, stack, 0).start;
    names(&message, &part, stack, offset);
}

#[test]
fn a_number_that_is_none_is_found_in_its_part() {
    let (scratch, gguf) = (Scratch::new("split-no-number"), checkpoint("qwen3moe.gguf"));
    let whole = parts(&gguf, 2);
    let [first, part] = split(&scratch, &whole, STACK);
    let damaged = row(&first, STACK, 7 * 40 + 39);
    let mut bytes = std::fs::read(&part).unwrap();
    bytes[damaged.start..damaged.start + 2].fill(0xff);
    std::fs::write(&part, bytes).unwrap();
    let message = refusal("qwen3moe.gguf", 8, &first);
    names(&message, &part, STACK, damaged.start);
}

/// A file that ends within a stack: the error names the table row that describes the stack.
#[test]
fn a_stack_cut_short_is_named_in_both_containers_and_in_parts() {
    let (scratch, gguf) = (Scratch::new("cut-experts"), checkpoint("qwen3moe.gguf"));
    let last = |file: &Path| {
        let checkpoint = Checkpoint::open(file).unwrap();
        let views = checkpoint
            .names()
            .map(|name| checkpoint.tensor(name).unwrap());
        let view = views
            .filter(|view| view.file == file)
            .max_by_key(|view| view.offset)
            .unwrap();
        (view.name.to_owned(), view.offset)
    };
    let (tensor, offset) = last(&gguf);
    let bytes = std::fs::read(&gguf).unwrap();
    let file = written(&scratch, "cut.gguf", &bytes[..offset + 1]);
    let message = refusal("qwen3moe.gguf", 8, &file);
    names(&message, &file, &tensor, find(&bytes, &text(&tensor)));

    let [first, part] = split(&scratch, &parts(&gguf, 2), STACK);
    let (tensor, offset) = last(&part);
    let bytes = std::fs::read(&part).unwrap();
    std::fs::write(&part, &bytes[..offset + 1]).unwrap();
    let message = refusal("qwen3moe.gguf", 8, &first);
    names(&message, &part, &tensor, find(&bytes, &text(&tensor)));

    let whole = checkpoint("qwen3moe").join("model.safetensors");
    let (tensor, offset) = last(&whole);
    let bytes = std::fs::read(&whole).unwrap();
    let file = written(&scratch, "model.safetensors", &bytes[..offset + 1]);
    let message = refusal("qwen3moe", 8, &file);
    let key = format!("\"{tensor}\":");
    names(
        &message,
        &file,
        &tensor,
        find(&bytes, key.as_bytes()) + key.len(),
    );
}

/// A table that declares 2^31 experts, or none, for a stack with the bytes of eight.
#[test]
fn stacks_of_absurd_counts_are_named() {
    let (scratch, gguf) = (Scratch::new("absurd-experts"), checkpoint("qwen3moe.gguf"));
    let good = std::fs::read(&gguf).unwrap();
    let entry = find(&good, &text(STACK));
    // Length of the name, name, number of dimensions, then the outermost of three dimensions last.
    let count = entry + 8 + STACK.len() + 4 + 2 * 8;
    assert_eq!(good[count..count + 8], 8u64.to_le_bytes());
    for experts in [0u64, 1 << 31, u64::MAX] {
        let mut bytes = good.clone();
        bytes[count..count + 8].copy_from_slice(&experts.to_le_bytes());
        let file = written(&scratch, "absurd.gguf", &bytes);
        let message = refusal("qwen3moe.gguf", 8, &file);
        let offset = match experts {
            0 => row(&gguf, STACK, 0).start,
            _ => entry,
        };
        names(&message, &file, STACK, offset);
    }
}
