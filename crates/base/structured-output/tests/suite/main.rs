//! Grammars: token masks, shared work, tags, hostile schemas.
#![allow(clippy::unwrap_used)]

mod hostile;
mod masks;
mod names;
mod sharing;
mod tags;
