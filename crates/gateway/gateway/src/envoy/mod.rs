//! The Envoy integration: Envoy proxies the requests and obtains their endpoints from the gateway.
//! Decisions, metrics and feedback are the same as in the gateway's own proxy.

mod answer;
mod call;
mod door;
mod inside;

pub(crate) use door::EnvoyDoor;
