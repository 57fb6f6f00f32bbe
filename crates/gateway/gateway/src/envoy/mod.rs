//! The Envoy integration: Envoy proxies the requests and gets their endpoints (replicas) from the
//! gateway. Decisions, metrics and feedback are those of the gateway's own proxy.

mod answer;
mod call;
mod door;
mod inside;

pub(crate) use door::EnvoyDoor;
