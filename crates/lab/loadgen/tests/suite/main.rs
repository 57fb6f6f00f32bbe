//! The load generator: known answers, hostile servers, sockets.
#![allow(clippy::unwrap_used)]

mod hostile;
mod known_answers;
mod script;
mod sockets;
mod stage;
