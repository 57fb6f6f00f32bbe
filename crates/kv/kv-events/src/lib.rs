//! KV events: the contents of an engine's prefix cache, as a stream for subscribers.
//!
//! vLLM and SGLang use the same format: ZeroMQ PUB with the frames topic, sequence number (8
//! bytes, big-endian) and batch (MessagePack), and a ROUTER for the replay of past batches.
//!
//! ```text
//!  engine -> Publisher -> PUB, ROUTER  ~~~~  SUB, DEALER -> follow -> Update
//! ```
//!
//! `zmtp` implements the part of ZMTP 3.0 that these four sockets use: the NULL mechanism over TCP.
//! Received data is untrusted: every length is checked before use.

mod batch;
mod chunks;
mod connection;
mod endpoint;
mod follow;
mod msgpack;
mod publisher;
mod write;
mod zmtp;

pub use batch::{Batch, BlockHash, Event, Medium, Stored};
pub use chunks::Chunks;
pub use endpoint::{Endpoint, EndpointError};
pub use follow::{Following, Update, follow};
pub use msgpack::Malformed;
pub use publisher::{PublishError, Publisher, PublisherSettings};
pub use write::BatchWriter;
