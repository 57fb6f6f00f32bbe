//! Flow control of a pool: which requests wait while all of its replicas are saturated, in which
//! order they go on, and which are refused.
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
//! request has its turn at a time. It gives the turn back when it has reserved its replica, so that
//! the next look at the load includes the reservation.

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
