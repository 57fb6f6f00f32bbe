//! Middleware of all OpenAI-compatible servers of Penstock: request ids, API keys and their limits,
//! origin checks, error and access logs, request metrics, and errors as responses.

mod access;
mod anthropic;
mod cors;
mod failure;
mod guard;
mod unrouted;

pub use access::{AccessFacts, AccessLine, AccessRecord, log_access};
pub use anthropic::is_here as is_anthropic;
pub use failure::{Failure, json, log_refusal};
pub use guard::{CallerPermit, Guard, guarded};
pub use unrouted::{method_not_allowed, no_route};
