//! Reverse proxy in front of servers with OpenAI's API (replicas): it picks a replica for each
//! request by load and cached prefix, streams the response through, and resumes it on another
//! replica when one fails.
//!
//! The request path, in reading order: [`forward::forward`], [`call::ProxiedRequest::read`],
//! [`pool::Pool::route`], [`relay::ResponseBody`].

mod attempt;
mod call;
mod charge;
mod choice;
mod config;
mod cursor;
mod ending;
mod envoy;
mod error;
mod events;
mod exact;
mod explain;
mod failover;
mod filter;
mod flow;
mod form;
mod forward;
mod gateway;
mod headers;
mod hedge;
mod info;
mod kinds;
mod members;
mod metrics;
mod mirror;
mod models;
mod object;
mod observe;
mod paths;
mod picks;
mod pool;
mod relay;
mod reload;
mod rename;
mod replicas;
mod resume_markers;
mod routes;
mod run;
mod scan;
mod serving;
mod silence;
mod stop;
mod text_resume;
mod usage;

pub use config::{Config, ExtProc, KvEvents, PoolConfig};
pub use error::StartError;
pub use flow::FlowSettings;
pub use gateway::Gateway;
pub use hedge::HedgeSettings;
pub use mirror::MirrorSettings;
pub use reload::Reread;
pub use run::run;
pub use serving::Serving;
