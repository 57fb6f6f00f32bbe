//! Streaming parsers that split a model's output into reasoning, content and tool calls.
//!
//! One state machine per format family: text in, events out, independent of the chunk boundaries.
//! No I/O. Text that only resembles a call is content; the arguments of a malformed call are kept
//! unchanged. The amount of text that is held back for this decision is bounded.

mod call_object;
mod constraint;
mod events;
mod formats;
mod harmony;
mod hermes;
mod json;
mod llama;
mod machine;
mod marked;
mod mistral;
mod object_text;
mod out;
mod parser;
mod python;
mod pythonic;
mod schema;
mod search;
mod tagged;
mod think;
mod typed;

pub use events::OutputEvent;
pub use formats::{ReasoningFormat, ToolFormat};
pub use parser::{OutputParser, ParserRules};
pub use schema::ToolSchema;
