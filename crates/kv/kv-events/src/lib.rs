//! KV events: which blocks an engine's prefix cache has, as a stream that others follow.
//!
//! The form is vLLM's, and SGLang's: ZeroMQ PUB with the frames topic, sequence number (8 bytes,
//! big-endian) and batch (MessagePack), and a ROUTER that sends past batches again.
//!
//! ```text
//!  engine -> Publisher -> PUB, ROUTER  ~~~~  SUB, DEALER -> follow -> Update
//! ```
//!
//! ZMTP 3.0 is there as far as these four sockets need it: NULL over TCP, in `zmtp`.
//! What arrives is untrusted: every length is checked before it is used.

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
