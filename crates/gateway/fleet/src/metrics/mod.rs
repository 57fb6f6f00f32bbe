//! Metrics pages: the text format, and each engine's names.

mod engines;
mod text;

pub(crate) use engines::reported;
