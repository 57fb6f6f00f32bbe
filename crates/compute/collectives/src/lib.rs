//! Communication between ranks. On one host, through shared memory: exchanges in a tensor-parallel
//! group, activations between pipeline stages, plans and results of the engine.
//!
//! Between hosts, over TCP: messages between two ranks ([`Stream`]) and in a group ([`Star`]).
//!
//! All shared memory is based on a [`Counter`](counter) that its owner increments. A rank that
//! waits for the counter first spins, then sleeps on a futex. It spins only for a short time,
//! because the computation needs the cores. A group that has lost a rank stays unusable: every wait
//! fails with [`GroupError`], and the workers are restarted.

mod counter;
mod error;
mod fence;
mod group;
mod memory;
mod ring;
mod star;
mod stream;

pub use error::{CommError, GroupError};
pub use fence::Fence;
pub use group::{Group, Parts};
pub use ring::{Reader, Writer};
pub use star::Star;
pub use stream::{Key, Stream, StreamFence, StreamListener};
