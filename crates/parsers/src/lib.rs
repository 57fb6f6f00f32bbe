//! What a model writes, read into reasoning, content and tool calls while it is written.
//!
//! Streaming state machines, one for each family of formats. No IO; text in, events out.

mod events;

pub use events::OutputEvent;
