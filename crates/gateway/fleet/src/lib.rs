//! The replicas behind a gateway: which there are, whether they may get requests, how loaded and
//! how fast they are. [`Fleet::view`] is what `penstock_routing::pick` decides on.
//!
//! ```text
//!  source -> members -> health checks, metrics, models --> snapshot --+
//!                                                                     +--> view
//!  begin, first token, end of each request --> counts, circuit breaker +
//! ```
//!
//! What is polled is one immutable snapshot that is swapped whole; what a replica pushes at each
//! step is swapped in its own place, and what this gateway has in flight is counted in atomics
//! beside it. A view joins them without a lock, so a request that was sent a microsecond ago is in
//! the next decision. Pure parts take the time as an argument.

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
mod settings;
mod shared;
mod snapshot;
mod tasks;
mod throughput;
mod view;
mod virtual_fleet;

pub use backend::{Backend, BackendError, Pods, Source};
pub use discovery::{FileError, SourceError};
pub use fleet::{Fleet, FleetError, NextSource};
pub use in_flight::{Blame, InFlight};
pub use load::Reported;
pub use outcome::Outcome;
pub use settings::{Breaker, Health, Metrics, Outliers, Settings, SettingsError};
pub use view::View;
pub use virtual_fleet::VirtualFleet;
