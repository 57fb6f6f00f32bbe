//! The benchmark client: sends requests when they are due and stamps what comes back. No
//! statistics.
//!
//! Read `run.rs` (the handle, on the caller's thread), `schedule.rs` (what is sent when),
//! `exchange.rs` (one request on one connection), `answer.rs` (events to a record). Everything runs
//! on one thread. Two seams stand between it and the world, so that tests play exact delays under a
//! virtual clock: [`Connect`] and [`Alarm`].
//!
//! **Open loop.** A request goes out when it is due and a place is free, whatever the server does
//! with the others. Its record has both times, so that lateness can be reported instead of omitted.
//!
//! **Stamps** are taken in the socket's read and write ([`stamps`]), before TLS, HTTP and JSON. All
//! events of one read share its stamp: a connection is not read again before what came is taken
//! over.

mod alarm;
mod answer;
mod connect;
mod exchange;
mod failure;
mod pool;
mod progress;
mod record;
mod run;
mod schedule;
mod stamps;
mod target;
mod tls;

pub use alarm::{Alarm, TimerFd};
pub use connect::{Connect, Tcp};
pub use failure::{Failure, FailureKind};
pub use progress::Progress;
pub use record::Columns;
pub use run::{LoadRun, RunError};
pub use schedule::{Command, Request, run_load};
pub use stamps::{Stamped, Stamps};
pub use target::{Target, TargetError};
