//! Reads of GGUF and safetensors files: valid, hostile, cut and mapped.
#![allow(clippy::unwrap_used)]

mod checkpoint;
mod common;
mod dequant;
mod gguf;
mod hostile;
mod read_ahead;
mod safetensors;
