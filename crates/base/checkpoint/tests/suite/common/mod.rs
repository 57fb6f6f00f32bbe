//! Builders of small files, byte by byte, and temporary directories.
#![allow(dead_code, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// A GGUF file under construction. Tests set counts and offsets, correct or not.
#[derive(Clone)]
pub(crate) struct GgufFile {
    pub(crate) version: u32,
    pub(crate) entry_count: Option<u64>,
    pub(crate) tensor_count: Option<u64>,
    pub(crate) alignment: usize,
    pub(crate) data: Vec<u8>,
    pub(crate) entries: Vec<Vec<u8>>,
    pub(crate) tensors: Vec<Vec<u8>>,
}

impl Default for GgufFile {
    fn default() -> Self {
        Self {
            version: 3,
            entry_count: None,
            tensor_count: None,
            alignment: 32,
            data: Vec::new(),
            entries: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

/// A length-prefixed string.
pub(crate) fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = text.as_ref();
    [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat()
}

/// Bytes of an array value: element type, count, elements.
pub(crate) fn array(kind: u32, elements: &[Vec<u8>]) -> Vec<u8> {
    [
        &kind.to_le_bytes()[..],
        &(elements.len() as u64).to_le_bytes(),
        &elements.concat(),
    ]
    .concat()
}

impl GgufFile {
    pub(crate) fn entry(mut self, key: impl AsRef<[u8]>, kind: u32, value: &[u8]) -> Self {
        self.entries
            .push([&string(key)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    /// `shape` is in stored order, innermost first.
    pub(crate) fn tensor(
        mut self,
        name: impl AsRef<[u8]>,
        shape: &[u64],
        kind: u32,
        offset: u64,
    ) -> Self {
        let dimensions: Vec<u8> = shape.iter().flat_map(|n| n.to_le_bytes()).collect();
        let count = (shape.len() as u32).to_le_bytes();
        self.tensors.push(
            [
                &string(name)[..],
                &count,
                &dimensions,
                &kind.to_le_bytes(),
                &offset.to_le_bytes(),
            ]
            .concat(),
        );
        self
    }

    pub(crate) fn data(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.data = bytes.into();
        self
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(
            self.tensor_count
                .unwrap_or(self.tensors.len() as u64)
                .to_le_bytes(),
        );
        file.extend(
            self.entry_count
                .unwrap_or(self.entries.len() as u64)
                .to_le_bytes(),
        );
        file.extend(self.entries.concat());
        file.extend(self.tensors.concat());
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        file.extend(&self.data);
        file
    }
}

/// A valid file with two tensors and some metadata.
pub(crate) fn plain_gguf() -> GgufFile {
    GgufFile::default()
        .entry("general.architecture", 8, &string("llama"))
        .entry("llama.block_count", 4, &2u32.to_le_bytes())
        .entry("tokens", 9, &array(8, &[string("a"), string("bc")]))
        .tensor("norm", &[4], 0, 0)
        .tensor("matrix", &[32, 3], 3, 32)
        .data((0..92u8).collect::<Vec<_>>())
}

/// A safetensors file with this header text and data.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
    ]
    .concat()
}

/// A test's temporary directory, removed at the end of the test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(test: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Path of a checkpoint in tests/fixtures/tiny.
pub(crate) fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../tests/fixtures/tiny")
        .join(name)
}
