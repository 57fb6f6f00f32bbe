//! Anthropic's `POST /v1/messages`: converts the request to a chat request, and writes the answer
//! as content blocks or their events.

mod blocks;
mod error;
mod events;
mod request;
mod tools;

pub use error::to_json as anthropic_error;
pub use events::MessageWriter;
pub use request::MessagesRequest;
