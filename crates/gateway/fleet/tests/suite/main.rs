//! Fleets of fake replicas: discovery, health, metrics, pushed load.
#![allow(clippy::unwrap_used)]

mod burst;
mod common;
mod health;
mod kubernetes;
mod metrics;
mod push;
mod torn;
