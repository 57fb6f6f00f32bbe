//! Properties of the parsers of untrusted bytes, one module for each. The fuzz targets call their
//! checks, and so does `tests/replay.rs`.

mod common;
pub mod gguf;
pub mod http_body;
pub mod kv_chunk;
pub mod safetensors;
pub mod sse;
pub mod tokenizer_json;
pub mod wire_frame;

pub use common::keep_caught_panics;

/// Takes any bytes, and panics if they break a property.
pub type Check = fn(&[u8]);

/// Every fuzz target with its check.
pub const TARGETS: [(&str, Check); 7] = [
    ("gguf", gguf::check),
    ("http_body", http_body::check),
    ("kv_chunk", kv_chunk::check),
    ("safetensors", safetensors::check),
    ("sse", sse::check),
    ("tokenizer_json", tokenizer_json::check),
    ("wire_frame", wire_frame::check),
];
