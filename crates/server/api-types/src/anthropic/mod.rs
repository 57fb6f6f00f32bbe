//! Anthropic's `POST /v1/messages`: the request as a chat request, the answer as content blocks and
//! their events.

mod blocks;
mod error;
mod events;
mod request;
mod tools;

pub use error::to_json as anthropic_error;
pub use events::MessageWriter;
pub use request::MessagesRequest;
