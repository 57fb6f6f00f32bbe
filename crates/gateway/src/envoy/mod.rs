//! The second door: Envoy carries the requests and asks where they go. What is decided, counted and
//! learned is what the proxy decides, counts and learns.

mod answer;
mod call;
mod door;
mod inside;

pub(crate) use door::EnvoyDoor;
