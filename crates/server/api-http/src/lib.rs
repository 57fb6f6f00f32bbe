//! What stands before the endpoints of every OpenAI-compatible server of Penstock: request ids,
//! keys and their limits, checks of origins, refusals in the log, the access log, counts; and
//! errors as responses.

mod anthropic;
mod cors;
mod failure;
mod guard;
mod unrouted;

pub use anthropic::is_here as is_anthropic;
pub use failure::{Failure, json, log_refusal};
pub use guard::{AccessNote, CallerPermit, Guard, guarded};
pub use unrouted::{method_not_allowed, no_route};
