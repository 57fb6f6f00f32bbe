//! The API server over real HTTP on loopback, with a scripted engine behind it on the real socket.
//!
//! `tests/tiny-model` is a tokenizer whose token id is the byte it stands for; 257 and 258 are
//! `<|im_start|>` and `<|im_end|>`, 256 is `he`.

#![allow(clippy::unwrap_used)]

mod client;
mod cors;
mod door;
mod errors;
mod faults;
mod hostile;
mod info;
mod keys;
mod kv;
mod kv_metrics;
mod limits;
mod listeners;
mod load;
mod messages;
mod pooling;
mod responses;
mod resume;
mod shapes;
mod streams;
mod tools;
mod traces;
mod trials;
mod unread;
