use std::io;
use std::path::PathBuf;

use penstock_wire::FrameError;

/// Reason why no engine is available.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the engine's argv is empty: its first item is the program to start")]
    EmptyArgv,
    #[error("cannot make the directory of the engine socket {path}: {source}")]
    SocketDir { path: PathBuf, source: io::Error },
    #[error("cannot listen on {path}: {source}")]
    Listen { path: PathBuf, source: io::Error },
    #[error("another API server listens on {path}: choose another socket directory or stop it")]
    InUse { path: PathBuf },
    #[error("{path} exists and is not a socket: choose another socket directory or remove it")]
    NotASocket { path: PathBuf },
    #[error("{reason}")]
    NotReady { reason: String },
}

/// Reason why a request was not submitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// A retry may succeed, unless the engine failed for good.
    #[error("{reason}")]
    NotReady { reason: String },
    /// The request cannot be encoded in the wire format.
    #[error(transparent)]
    Invalid(#[from] FrameError),
}

/// Reason why a KV cache command has no reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// A retry may succeed, unless the engine failed for good.
    #[error("{reason}")]
    NotReady { reason: String },
    /// The engine was lost before it replied; the reason names the cause.
    #[error("{reason}")]
    Lost { reason: String },
    /// The command cannot be encoded in the wire format.
    #[error(transparent)]
    Invalid(#[from] FrameError),
}
