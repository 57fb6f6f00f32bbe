//! What ranks say to each other. On one host, in shared memory: sums over a tensor-parallel group,
//! activations from one pipeline stage to the next, plans and results of the engine.
//!
//! Between hosts, over TCP: the same messages ([`Stream`]).
//!
//! What is in shared memory is built on one thing: a [`Counter`](counter) in shared memory that its
//! owner raises and others wait for, a bounded spin first and then a futex. Nobody spins for long,
//! because the cores belong to the computation. A group that lost a rank stays broken: every wait
//! ends with [`Lost`], and the workers are built anew.

mod counter;
mod error;
mod fence;
mod group;
mod memory;
mod ring;
mod stream;

pub use error::{CommError, Lost};
pub use fence::Fence;
pub use group::{Group, Parts};
pub use ring::{Reader, Writer};
pub use stream::{Key, Stream, StreamFence, StreamListener};
