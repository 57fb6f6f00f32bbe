//! Benchmark client: sends requests when they are due and takes timestamps of their responses. It
//! computes no statistics.
//!
//! Reading order: `run.rs` (the handle, on the caller's thread), `schedule.rs` (the sending loop),
//! `exchange.rs` (one request on one connection), `answer.rs` (events to a record). The load runs
//! on one thread. Tests implement [`Connect`] and [`Alarm`] to script exact delays under a virtual
//! clock.
//!
//! **Open loop.** A request is sent when it is due and the concurrency limit allows, regardless of
//! other responses. Its record has the time when it was due and the time when it was sent, so that
//! lateness is reported (no coordinated omission).
//!
//! **Stamps** are times taken in the socket's read and write ([`stamps`]), below TLS, HTTP and
//! JSON. All events of one read share its stamp: a connection is read again only after they are
//! parsed.

mod alarm;
mod answer;
mod connect;
mod exchange;
mod failure;
mod fields;
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
