//! The engine as an OpenAI server.

mod answering;
mod app;
mod chunks;
mod connections;
mod info;
mod metrics;
mod pipe;
mod publishing;
mod seat;
#[cfg(test)]
mod tests;

pub(crate) use app::{App, router};
pub(crate) use connections::accept;
pub(crate) use metrics::Counters;
pub(crate) use publishing::HttpPublisher;
