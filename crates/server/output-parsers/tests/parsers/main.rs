//! Outputs as documented for the families, whole and split at all positions.

#![allow(clippy::unwrap_used)]

mod calls;
mod common;
mod demanded;
mod malformed;
mod reasoning;
mod splits;
