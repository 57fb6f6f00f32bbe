//! Weight containers: GGUF files and Hugging Face safetensors directories, opened as memory maps.
//!
//! This room knows bytes, names, element types and shapes. What a tensor is *for* is the business
//! of the decoder, and what a metadata key *means* is the business of whoever reads it.
//!
//! Files are untrusted. Every length, count, offset and name is checked against the bytes that are
//! really there before anything is allocated or sliced, and a defect is a [`FormatError`] that
//! names the file, the tensor or key, and the byte offset.

mod checkpoint;
mod dequant;
mod dtype;
mod error;
mod fingerprint;
mod gguf;
mod safetensors;
mod tensor;

pub use checkpoint::Checkpoint;
pub use dequant::{dequantize, k_scale_min};
pub use dtype::DType;
pub use error::{Fault, FormatError};
pub use gguf::{Array, GgufHeader, Metadata, TensorInfo, Value};
pub use tensor::TensorView;
