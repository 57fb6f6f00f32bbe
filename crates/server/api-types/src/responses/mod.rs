//! `POST /v1/responses`: the request as a chat request, the answer as OpenAI's typed items and
//! events. Nothing is stored: a conversation comes whole with every request.

mod body;
mod events;
mod items;
mod request;
mod tools;

pub use body::{Echo, InputTokens};
pub use events::ResponseWriter;
pub use request::ResponsesRequest;
