//! Flow control of a pool. While all replicas of the pool are saturated, it decides which requests
//! wait, in which order they are routed, and which are refused.
//!
//! ```text
//!  request --class--> saturated? --no--------------------------------> route
//!                         | yes
//!                         +-- priority < 0, or queue full --> 429
//!                         +-- queue: by priority, then fair between tenants --turn--> route
//!                                ^                                                      |
//!                                +---------------- all replicas refuse -----------------+
//! ```
//!
//! [`Queue`] is pure: no clock, no tasks. [`FlowControl`] adds the waiting. Only one waiting
//! request has the turn (may be routed) at a time. It returns the turn after it has reserved its
//! replica, so that the next check of the load includes the reservation.

mod class;
mod control;
#[cfg(test)]
mod control_tests;
mod page;
mod queue;
#[cfg(test)]
mod queue_tests;
mod saturation;
mod settings;

pub(crate) use class::{Class, Classes};
pub(crate) use control::{FlowControl, Turn};
pub(crate) use page::flow_page;
pub(crate) use queue::Queue;
pub(crate) use saturation::Load;
pub use settings::FlowSettings;
