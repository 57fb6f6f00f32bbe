//! An engine with modelled timing, on the real server and the real wire.
//!
//! Front door and load generator are measured against it without a model, and capacity is estimated
//! with it.
//!
//! * `batching` decides what each step computes, as the scheduler of Penstock does (a test runs
//!   both and compares); `timing` gives its duration. Both are pure: no clock, no IO.
//! * The driver follows the timeline that they make and sends each step when its time has come.
//! * [`serve_wire`] is an engine behind a front door's socket, [`serve_http`] such engines behind
//!   the real server's endpoints in one process, with faults injected by a layer over them.

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
