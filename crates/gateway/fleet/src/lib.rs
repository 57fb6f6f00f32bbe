//! The replicas of a gateway: discovery, eligibility, load and throughput. [`Fleet::view`] gives
//! `penstock_routing::pick` its replicas.
//!
//! ```text
//!  source -> members -> health checks, metrics, models --> snapshot --+
//!                                                                     +--> view
//!  begin, first token, end of each request --> counts, circuit breaker +
//! ```
//!
//! Polled state is an immutable snapshot, replaced as a whole. Load that replicas push at each step
//! is stored separately, and this gateway's own requests are counted in atomics. A view combines
//! these without a lock, so a decision includes a request that was sent a microsecond earlier. Pure
//! parts take the time as an argument.

mod backend;
mod breaker;
mod checks;
mod discovery;
mod eligibility;
mod fetch;
mod fleet;
mod following;
mod in_flight;
mod live;
mod load;
mod member;
mod metrics;
mod outcome;
mod outliers;
mod peer_gateways;
mod polling;
mod process;
mod prompts;
mod push;
mod pushed;
mod rate;
mod settings;
mod shared;
mod snapshot;
mod status;
mod tasks;
mod throughput;
mod view;
mod virtual_fleet;

pub use backend::{Backend, BackendError, Pods, Source};
pub use breaker::BreakerState;
pub use discovery::{FileError, SourceError};
pub use fleet::{Fleet, FleetError, NextSource};
pub use in_flight::{Blame, InFlight};
pub use load::Reported;
pub use outcome::Outcome;
pub use settings::{Breaker, Health, Metrics, Outliers, Settings, SettingsError};
pub use status::{LastError, LoadSource, LoadStatus, ReplicaStatus};
pub use view::View;
pub use virtual_fleet::VirtualFleet;
