//! Bytes of checkpoint files: to damage some, and to split a file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use penstock_formats::{Checkpoint, DType};

use super::Scratch;

pub(crate) fn written(scratch: &Scratch, name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Bytes of row `row` of a tensor in a file.
pub(crate) fn row(file: &Path, tensor: &str, row: usize) -> Range<usize> {
    let checkpoint = Checkpoint::open(file).unwrap();
    let view = checkpoint.tensor(tensor).unwrap();
    view.row_offset(row)..view.row_offset(row + 1)
}

/// A GGUF file as parts of a split one, without metadata that the decoder does not read.
pub(crate) fn parts(whole: &Path, count: u16) -> Vec<Vec<u8>> {
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

/// A string as GGUF has it: its length before it.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

pub(crate) fn find(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|at| at == part).unwrap()
}
