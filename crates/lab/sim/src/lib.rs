//! A simulated engine with modelled timing, behind the real API server and its real protocol to
//! engines.
//!
//! Used to measure the API server and the load generator without a model, and to estimate capacity.
//!
//! * `batching` chooses the work of each step as Penstock's scheduler does (a test compares both);
//!   `timing` gives the step's duration. Both are pure: no clock, no IO.
//! * The driver runs this timeline in real time and sends each step when it is due.
//! * [`serve_wire`] is an engine that connects to an API server's socket. [`serve_http`] runs such
//!   engines behind the real server's endpoints in one process; a layer above them injects faults.

mod answers;
mod batching;
mod config;
mod counters;
mod driver;
mod engine;
mod faults;
mod fleet;
mod inject;
mod profile;
#[cfg(test)]
mod push_tests;
mod random;
mod replay;
mod replica;
#[cfg(test)]
mod replica_tests;
mod run;
mod timer;
mod timing;
mod vocabulary;

pub use config::SimError;
pub use fleet::fleet_replay;
pub use replay::replay;
pub use run::{serve_http, serve_wire};
