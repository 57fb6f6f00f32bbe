//! Text processing: conversion between the API's strings and the engine's token ids.
//!
//! This crate contains the tokenizer, the chat template renderer, incremental detokenization and
//! stop strings, for GGUF files and Hugging Face directories. It is synchronous; the only IO is one
//! read of the model's text files.

mod bytes;
mod caught;
mod chat;
mod detokenizer;
mod error;
mod gguf;
mod guard;
mod hf;
mod jinja;
mod model;
mod shortened;
mod stop;
mod tiktoken;
mod tokenizer;
mod words;

pub use chat::{ChatTemplate, Elsewhere, run_template_job};
pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use guard::Rendered;
pub use model::{Conversation, TextModel};
pub use shortened::shortened;
pub use stop::{StopOutcome, StopStrings};
pub use tokenizer::Tokenizer;

/// Texts of the model's special tokens by role (`bos_token`, `eos_token`, ...), with the names used
/// in chat templates.
pub type SpecialTokens = std::collections::BTreeMap<String, String>;
