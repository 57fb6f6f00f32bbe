//! Picks beside an oracle, and their properties.
#![allow(clippy::unwrap_used)]

mod oracle;
mod properties;
mod support;
