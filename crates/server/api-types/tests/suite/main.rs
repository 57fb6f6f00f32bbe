//! Bodies and events: golden texts, hostile bodies, the SSE reader.
#![allow(clippy::unwrap_used)]

mod golden;
mod hostile;
mod sse_reader;
