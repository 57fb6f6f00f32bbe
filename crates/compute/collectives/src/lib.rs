//! Communication between ranks. On one host, in shared memory: exchanges inside a tensor-parallel
//! group, activations from one pipeline stage to the next, plans and results of the engine.
//!
//! Between hosts, over TCP: messages of two ranks ([`Stream`]), and of a group ([`Star`]).
//!
//! All shared memory is built on a [`Counter`](counter) that its owner raises and others wait for:
//! a bounded spin, because the cores belong to the computation, then a futex. A group that lost a
//! rank stays broken: every wait ends with [`Lost`], and the workers are started anew.

mod counter;
mod error;
mod fence;
mod group;
mod memory;
mod ring;
mod star;
mod stream;

pub use error::{CommError, Lost};
pub use fence::Fence;
pub use group::{Group, Parts};
pub use ring::{Reader, Writer};
pub use star::Star;
pub use stream::{Key, Stream, StreamFence, StreamListener};
