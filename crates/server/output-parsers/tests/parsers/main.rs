//! Outputs as the families document them, whole and cut in all ways.

#![allow(clippy::unwrap_used)]

mod calls;
mod common;
mod demanded;
mod malformed;
mod reasoning;
mod splits;
