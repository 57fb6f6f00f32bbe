//! `POST /v1/responses`: converts the request to a chat request, and writes the answer as OpenAI's
//! typed items and events. Nothing is stored: each request must contain its whole conversation.

mod body;
mod events;
mod items;
mod request;
mod tools;

pub use body::{Echo, InputTokens};
pub use events::ResponseWriter;
pub use request::ResponsesRequest;
