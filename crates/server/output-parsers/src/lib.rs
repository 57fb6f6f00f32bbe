//! What a model writes, read into reasoning, content and tool calls while it is written.
//!
//! Streaming state machines, one for each family of formats: text in, events out, whatever pieces
//! the text comes in. No IO. Text that only looks like a call is content; a call that is not well
//! formed keeps its arguments as they are. What is held back until that is known is bounded.

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
