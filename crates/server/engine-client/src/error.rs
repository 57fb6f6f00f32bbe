use std::io;
use std::path::PathBuf;

use penstock_wire::FrameError;

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the engine's argv is empty: its first item is the program to start")]
    EmptyArgv,
    #[error("cannot make the directory of the engine socket {path}: {source}")]
    SocketDir { path: PathBuf, source: io::Error },
    #[error("cannot listen on {path}: {source}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("another front door listens on {path}: choose another socket directory or stop it")]
    InUse { path: PathBuf },
    #[error("{path} exists and is not a socket: choose another socket directory or remove it")]
    NotASocket { path: PathBuf },
    #[error("{reason}")]
    NotReady { reason: String },
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Worth another try later, unless the engine failed for good.
    #[error("{reason}")]
    NotReady { reason: String },
    /// The request breaks the rules of the wire.
    #[error(transparent)]
    Invalid(#[from] FrameError),
}

/// Why an order about the cache has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Worth another try later, unless the engine failed for good.
    #[error("{reason}")]
    NotReady { reason: String },
    /// The engine was lost meanwhile; the reason names the cause.
    #[error("{reason}")]
    Lost { reason: String },
    /// The order breaks the rules of the wire.
    #[error(transparent)]
    Invalid(#[from] FrameError),
}
