//! The disk tier: round trips, damage, crashes, several writers, room, and what `penstock kv` does.
#![allow(clippy::unwrap_used)]

mod admin;
mod crashes;
mod damage;
mod fixtures;
mod outside;
mod room;
mod round_trip;
mod scale;
mod several;
mod start;
mod worth;
