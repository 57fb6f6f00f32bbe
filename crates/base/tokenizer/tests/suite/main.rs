//! Tokenizers, detokenizers, stop strings and chat templates beside references.
#![allow(clippy::unwrap_used)]

mod common;
mod detokenizer;
mod families;
mod forms;
mod gguf;
mod guard;
mod histories;
mod hostile;
mod reference;
mod stop;
mod template;
mod tiktoken;
mod words;
