//! Mixtures whose files are damaged: each error names file, tensor and byte, in both containers and
//! in split files.
#![allow(clippy::unwrap_used)]

mod common;

use std::ops::Range;
use std::path::{Path, PathBuf};

use common::{Scratch, checkpoint, options, spec};
use penstock_decoder::Decoder;
use penstock_formats::{Checkpoint, DType};
use penstock_kernels::Isa;
use serde_json::json;

const STACK: &str = "blk.1.ffn_up_exps.weight";

/// What loading says of the weights at `path`, with the spec and recipes of the fixture `name` for
/// so many experts.
fn refusal(name: &str, experts: usize, path: &Path) -> String {
    let (mut spec, weights) = spec(name);
    spec["kinds"][0]["feed_forward"]["experts"] = json!(experts);
    let (spec, weights) = (spec.to_string(), weights.to_string());
    match Decoder::load(&spec, &weights, path, &options(Isa::detect())) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

fn written(scratch: &Scratch, name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Bytes of row `row` of a tensor in a file.
fn row(file: &Path, tensor: &str, row: usize) -> Range<usize> {
    let checkpoint = Checkpoint::open(file).unwrap();
    let view = checkpoint.tensor(tensor).unwrap();
    view.row_offset(row)..view.row_offset(row + 1)
}

/// A GGUF file as parts of a split one, without metadata that the decoder does not read.
fn parts(whole: &Path, count: u16) -> Vec<Vec<u8>> {
    let checkpoint = Checkpoint::open(whole).unwrap();
    let mut names: Vec<&str> = checkpoint.names().collect();
    names.reverse();
    let each = names.len().div_ceil(usize::from(count));
    let part = |(number, names): (usize, &[&str])| {
        let mut file = b"GGUF".to_vec();
        file.extend(3u32.to_le_bytes());
        file.extend((names.len() as u64).to_le_bytes());
        file.extend(2u64.to_le_bytes());
        for (key, value) in [("split.no", number as u16), ("split.count", count)] {
            file.extend([&text(key)[..], &2u32.to_le_bytes(), &value.to_le_bytes()].concat());
        }
        let mut data = Vec::new();
        for name in names {
            let view = checkpoint.tensor(name).unwrap();
            let kind: u32 = match view.dtype {
                DType::F32 => 0,
                DType::F16 => 1,
                other => panic!("{other}"),
            };
            file.extend([&text(name)[..], &(view.shape.len() as u32).to_le_bytes()].concat());
            let shape = view.shape.iter().rev();
            shape.for_each(|&n| file.extend((n as u64).to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(view.data);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        file.resize(file.len().next_multiple_of(32), 0);
        [file, data].concat()
    };
    names.chunks(each).enumerate().map(part).collect()
}

/// The parts as files; the path of the one that has `tensor`, after that of the first.
fn split(scratch: &Scratch, parts: &[Vec<u8>], tensor: &str) -> [PathBuf; 2] {
    let name = |number| format!("m-{:05}-of-{:05}.gguf", number + 1, parts.len());
    let write = |(number, bytes): (usize, &Vec<u8>)| written(scratch, &name(number), bytes);
    let paths: Vec<PathBuf> = parts.iter().enumerate().map(write).collect();
    let has = |bytes: &Vec<u8>| {
        bytes
            .windows(tensor.len())
            .any(|at| at == tensor.as_bytes())
    };
    let at = parts.iter().position(has).unwrap();
    [paths[0].clone(), paths[at].clone()]
}

/// A string as GGUF has it: its length before it.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn find(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|at| at == part).unwrap()
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

/// A file that ends within a stack: the row of the table that describes it is named.
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

/// A table that gives a stack 2^31 experts, or none, with the bytes of eight.
#[test]
fn stacks_of_absurd_counts_are_named() {
    let (scratch, gguf) = (Scratch::new("absurd-experts"), checkpoint("qwen3moe.gguf"));
    let good = std::fs::read(&gguf).unwrap();
    let entry = find(&good, &text(STACK));
    // Length of the name, name, number of dimensions, and the outermost of three last.
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
