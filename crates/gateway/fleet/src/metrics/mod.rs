//! Metrics pages: their text format, and what each engine's metrics mean.

mod engines;
mod text;

pub(crate) use engines::reported;
