//! Common HTTP code of Penstock's servers: connections, request bodies, limits, streamed response
//! bodies, request ids, API keys, the metrics page, signals and the log. Independent of OpenAI
//! types and of the engine.

mod below;
mod body;
mod client;
mod coalesce;
mod connection_limits;
mod connections;
mod exchange;
mod filter;
mod histogram;
mod ids;
mod keys;
mod lifecycle;
mod limits;
mod line_ends;
mod listener;
mod log;
mod notify;
mod page;
mod pipe;
mod preface;
mod process;
mod rate;
mod reload;
mod request_id;
mod requests;
mod reuse;
mod shown;
mod signals;
mod timed;
mod tls;
mod unread;

pub use below::is_below;
pub use body::{BodyBudget, BodyError, BodyShare, HeldBody, read_body};
pub use client::{Client, ClientError, Identity, Trust};
pub use coalesce::Gathered;
pub use connections::Connections;
pub use exchange::{Exchange, ExchangeEnd};
pub use histogram::{Histogram, write_histogram};
pub use ids::RandomIds;
pub use keys::{Bearer, Caller, Keys, has_key};
pub use lifecycle::{run_process, wind_down};
pub use limits::Limits;
pub use listener::{Listener, Peer};
pub use log::{
    Level, LogFields, LogFormat, LogSettings, configure_log, flush_log, log, log_with, one_line,
};
pub use notify::ServiceManager;
pub use page::{Page, escaped};
pub use pipe::{PipeReader, PipeWriter, WriteError, pipe};
pub use process::write_process;
pub use rate::{KeyPermit, KeyUse, RateLimited, RateLimits};
pub use reload::Reloaded;
pub use request_id::{id_of, request_id, with_request_id};
pub use requests::RequestCounts;
pub use shown::{shortened, shown_url};
pub use signals::Signals;
pub use tls::{Tls, TlsFiles};
