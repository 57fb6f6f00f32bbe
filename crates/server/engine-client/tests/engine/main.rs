//! One engine from its socket to its end, against the scripted engine and real child processes.
#![allow(clippy::unwrap_used)]

mod commands;
mod common;
mod observer;
mod process;
mod requests;
mod socket;
