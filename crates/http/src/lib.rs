//! HTTP as every server of Penstock needs it: connections, request bodies, streamed response
//! bodies, request ids, API keys and the metrics page. No OpenAI types, no engine.

mod body;
mod connections;
mod histogram;
mod ids;
mod keys;
mod page;
mod pipe;
mod request_id;
mod signals;

pub use body::{BodyError, read_body};
pub use connections::Connections;
pub use histogram::{Histogram, write_histogram};
pub use ids::RandomIds;
pub use keys::has_key;
pub use page::{Page, escaped};
pub use pipe::{PipeReader, PipeWriter, WriteError, pipe};
pub use request_id::{request_id, with_request_id};
pub use signals::Signals;
