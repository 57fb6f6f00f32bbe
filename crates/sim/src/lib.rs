//! An engine with modelled timing, on the real HTTP and the real wire.
//!
//! Front door and load generator are measured against it without a model, and capacity is estimated
//! with it.
//!
//! * [`batching`] decides what each step computes, as the scheduler of Penstock does; [`Timing`]
//!   says how long that takes. Both are pure: no clock, no IO.
//! * The driver follows the timeline that they make and publishes each step when its time has come.
//! * [`serve_http`] is an OpenAI server around it, [`serve_wire`] an engine behind a front door's
//!   socket.

mod answers;
pub mod batching;
mod config;
mod driver;
mod faults;
mod http;
mod profile;
mod random;
mod run;
mod timer;
mod timing;
mod vocabulary;
mod wire;

pub use answers::{Answers, LengthDistribution};
pub use config::{EngineSettings, HttpConfig, SimError, WireConfig};
pub use faults::{Fault, FaultKind, Faults};
pub use profile::Profile;
pub use run::{serve_http, serve_wire};
pub use timing::{StepShape, Timing};
