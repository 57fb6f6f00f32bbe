//! Ranks over shared memory, streams and stars.
#![allow(clippy::unwrap_used)]

mod ranks;
mod star;
mod streams;
