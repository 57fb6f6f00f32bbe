//! The client of one engine process: starts it, supervises it, and submits requests over a unix
//! socket.
//!
//! [`Engine`] is the handle: it submits requests and exposes the engine's state. A supervisor task
//! owns the process and the connection; each request's outputs arrive in its own [`RequestStream`].

mod backoff;
mod commands;
mod config;
mod connection;
mod engine;
mod error;
mod failure;
mod observer;
mod process;
mod requests;
mod session;
mod socket;
mod socket_dir;
mod state;
mod supervisor;
#[cfg(feature = "testing")]
pub mod testing;

pub use config::{EngineConfig, RestartBackoff, SocketPlace};
pub use connection::{Connection, Disconnect, FrontConnection, Outbox, OutgoingFrame};
pub use engine::{Engine, EngineHistory};
pub use error::{CommandError, EngineError, SubmitError};
pub use observer::Observer;
pub use requests::{Event, RequestStream};
pub use session::Progress;
pub use socket_dir::SocketDir;
pub use state::EngineState;
