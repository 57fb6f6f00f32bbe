//! HTTP as every server of Penstock needs it: connections, request bodies, limits, streamed
//! response bodies, request ids, API keys, the metrics page, signals and the log. No OpenAI types,
//! no engine.

mod body;
mod connections;
mod histogram;
mod ids;
mod keys;
mod limits;
mod log;
mod open;
mod page;
mod pipe;
mod request_id;
mod signals;
mod timed;

pub use body::{BodyBudget, BodyError, HeldBody, read_body};
pub use connections::Connections;
pub use histogram::{Histogram, write_histogram};
pub use ids::RandomIds;
pub use keys::has_key;
pub use limits::Limits;
pub use log::{Level, LogFormat, LogSettings, configure_log, flush_log, log};
pub use page::{Page, escaped};
pub use pipe::{PipeReader, PipeWriter, WriteError, pipe};
pub use request_id::{request_id, with_request_id};
pub use signals::Signals;
