//! Metrics pages: the text format, and the names that each engine uses.

mod engines;
mod text;

pub(crate) use engines::reported;
