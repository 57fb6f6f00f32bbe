//! Bytes of checkpoint files, to damage them and to split a file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use penstock_checkpoint::Checkpoint;

use super::{Scratch, Stored};

pub(crate) fn written(scratch: &Scratch, name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Byte range of row `row` of a tensor in a file.
pub(crate) fn row(file: &Path, tensor: &str, row: usize) -> Range<usize> {
    let checkpoint = Checkpoint::open(file).unwrap();
    let view = checkpoint.tensor(tensor).unwrap();
    view.row_offset(row)..view.row_offset(row + 1)
}

/// A GGUF file as parts of a split file, without metadata that the decoder does not read.
pub(crate) fn parts(whole: &Path, count: u16) -> Vec<Vec<u8>> {
    let checkpoint = Checkpoint::open(whole).unwrap();
    let mut names: Vec<&str> = checkpoint.names().collect();
    names.reverse();
    let each = names.len().div_ceil(usize::from(count));
    let part = |(number, names): (usize, &[&str])| {
        let keys = [("split.no", number as u16), ("split.count", count)];
        gguf(&stored(&checkpoint, names), &keys)
    };
    names.chunks(each).enumerate().map(part).collect()
}

/// Tensors of a checkpoint, with types in GGUF spelling.
pub(crate) fn stored(checkpoint: &Checkpoint, names: &[&str]) -> Vec<Stored> {
    let read = |name: &&str| {
        let view = checkpoint.tensor(name).unwrap();
        Stored {
            name: (*name).to_owned(),
            dtype: view.dtype.to_string(),
            shape: view.shape.clone(),
            bytes: view.data.to_vec(),
        }
    };
    names.iter().map(read).collect()
}

/// A GGUF file of these tensors, with 16-bit numbers as its metadata.
pub(crate) fn gguf(tensors: &[Stored], keys: &[(&str, u16)]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        file.extend([&text(key)[..], &2u32.to_le_bytes(), &value.to_le_bytes()].concat());
    }
    let mut data = Vec::new();
    for tensor in tensors {
        let dims = (tensor.shape.len() as u32).to_le_bytes();
        file.extend([&text(&tensor.name)[..], &dims].concat());
        let shape = tensor.shape.iter().rev();
        shape.for_each(|&n| file.extend((n as u64).to_le_bytes()));
        file.extend(number_of(&tensor.dtype).to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        data.extend(&tensor.bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    [file, data].concat()
}

/// GGUF's code of an element type.
fn number_of(dtype: &str) -> u32 {
    match dtype {
        "F32" => 0,
        "F16" => 1,
        "Q4_0" => 2,
        "Q4_1" => 3,
        "Q5_0" => 6,
        "Q5_1" => 7,
        "Q8_0" => 8,
        "Q4_K" => 12,
        "Q5_K" => 13,
        "Q6_K" => 14,
        "IQ4_NL" => 20,
        "BF16" => 30,
        "MXFP4" => 39,
        other => panic!("{other}"),
    }
}

/// Writes the parts as files. Returns the path of the first one and of the one with `tensor`.
pub(crate) fn split(scratch: &Scratch, parts: &[Vec<u8>], tensor: &str) -> [PathBuf; 2] {
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

/// A string in GGUF encoding: length prefix, then bytes.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

pub(crate) fn find(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|at| at == part).unwrap()
}
