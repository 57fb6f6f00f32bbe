//! Test files outside the repository.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // each test binary uses a part

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use penstock_tokenizer::{TextModel, Tokenizer};

/// The default model's GGUF file; `None`, with a message about the searched path, if it is missing.
pub fn model_path() -> Option<PathBuf> {
    let cached = std::env::var_os("HOME").map(|home| {
        Path::new(&home).join(".cache/penstock/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    });
    let path = std::env::var_os("PENSTOCK_MODEL")
        .map(PathBuf::from)
        .or(cached)?;
    existing(path, "set PENSTOCK_MODEL, or run `penstock pull smollm2`")
}

/// The default model, opened once per test binary.
pub fn model() -> Option<&'static TextModel> {
    static MODEL: OnceLock<Option<TextModel>> = OnceLock::new();
    MODEL
        .get_or_init(|| model_path().map(|path| TextModel::open(&path, None).unwrap()))
        .as_ref()
}

pub fn tokenizer() -> Option<Arc<Tokenizer>> {
    model().map(|model| Arc::clone(&model.tokenizer))
}

/// A file of reference outputs, parsed.
pub fn reference(name: &str) -> Option<serde_json::Value> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared");
    let shared = std::env::var_os("PENSTOCK_SHARED").map_or(beside, PathBuf::from);
    let path = existing(shared.join("reference").join(name), "set PENSTOCK_SHARED")?;
    Some(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
}

fn existing(path: PathBuf, remedy: &str) -> Option<PathBuf> {
    let there = path.exists();
    if !there {
        println!("SKIPPED: {} is missing; {remedy}", path.display());
    }
    there.then_some(path)
}
