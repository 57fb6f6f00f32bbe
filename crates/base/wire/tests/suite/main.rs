//! Frames, plans, results and transfers: golden bytes and properties.
#![allow(clippy::unwrap_used)]

mod common;
mod golden;
mod grammar;
mod plan;
mod properties;
mod steps;
mod transfer;
