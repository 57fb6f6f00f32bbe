//! The second door: Envoy carries the requests and gets their destinations from here. Decisions,
//! counts and learning are those of the proxy.

mod answer;
mod call;
mod door;
mod inside;

pub(crate) use door::EnvoyDoor;
