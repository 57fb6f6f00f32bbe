//! One file per group of endpoints. A generation endpoint is one function with these stages: parse,
//! admit and tokenize (one job on the body, `jobs.rs`), submit, respond.

pub(crate) mod chat;
mod chat_parts;
mod chat_render;
pub(crate) mod completions;
mod completions_render;
pub(crate) mod embeddings;
pub(crate) mod info;
pub(crate) mod kv;
pub(crate) mod messages;
mod messages_render;
pub(crate) mod pairs;
mod pooled;
mod prepared;
pub(crate) mod responses;
mod responses_render;
pub(crate) mod tokenize;
