//! Text: strings of the API to token ids of the engine and back.
//!
//! This room owns the tokenizer, the chat template renderer, incremental detokenization and stop
//! strings, for GGUF files and Hugging Face directories alike. It is synchronous and does no IO
//! beyond reading the model's text files once.

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

/// Texts of the model's special tokens by role (`bos_token`, `eos_token`, ...), as chat templates
/// name them.
pub type SpecialTokens = std::collections::BTreeMap<String, String>;
