//! Weight containers: memory-mapped GGUF files and Hugging Face safetensors directories.
//!
//! This crate handles bytes, names, element types and shapes, not the meaning of tensors or
//! metadata keys.
//!
//! Files are untrusted. Every length, count, offset and name is checked against the file's bytes
//! before anything is allocated or sliced. A defect is a [`FormatError`] that names the file, the
//! tensor or key, and the byte offset.

mod checkpoint;
mod dequant;
mod dtype;
mod error;
mod fingerprint;
mod gguf;
mod read_ahead;
mod safetensors;
mod split;
mod tensor;

pub use checkpoint::Checkpoint;
pub use dequant::{IQ4_NL, dequantize, five_bits, k_scale_min};
pub use dtype::DType;
pub use error::{Fault, FormatError, Unreadable, one_line};
pub use gguf::{Array, GgufHeader, Metadata, TensorInfo, Value};
pub use read_ahead::{Arrival, ReadAhead, ReadCount};
pub use tensor::TensorView;
