//! OpenAI types, errors and SSE of the front door, and the frames it exchanges with an engine. No IO.

pub mod error;
pub mod frames;
pub mod openai;
pub mod sse;
pub mod sse_reader;

pub use error::ApiError;
