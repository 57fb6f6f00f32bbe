use std::path::PathBuf;
use std::time::Duration;

/// How to start one engine and check its health.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Program and arguments of the engine; `{socket}` in any of them becomes the socket's path.
    /// `None` starts nothing: an external engine connects.
    pub argv: Option<Vec<String>>,
    /// Standard input of the program, for secrets that other users of the host must not read.
    pub input: String,
    pub socket: SocketPlace,
    /// An engine without a STEP for this long is not healthy; see [`crate::Engine::healthy`].
    pub stall_timeout: Duration,
    /// Time-out until READY, from the start of the process or, for an external engine, from the
    /// connection.
    pub start_timeout: Duration,
    pub restart_backoff: RestartBackoff,
}

/// Location of the socket `engine.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketPlace {
    /// In this directory, which is created and later removed unless it already exists.
    Directory(PathBuf),
    /// In a new private directory below this one. Directories left behind by killed servers are
    /// removed.
    PrivateIn(PathBuf),
}

impl Default for SocketPlace {
    /// Private, in the system's temporary directory.
    fn default() -> Self {
        Self::PrivateIn(std::env::temp_dir())
    }
}

/// Exponential backoff before a restart, doubling from `initial` to `max`.
#[derive(Debug, Clone, Copy)]
pub struct RestartBackoff {
    pub initial: Duration,
    pub max: Duration,
    /// An engine that was ready for at least this long resets the backoff to `initial`.
    pub reset_after: Duration,
}

impl Default for RestartBackoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(200),
            max: Duration::from_secs(10),
            reset_after: Duration::from_secs(60),
        }
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            argv: None,
            input: String::new(),
            socket: SocketPlace::default(),
            stall_timeout: Duration::from_secs(30),
            start_timeout: Duration::from_secs(600),
            restart_backoff: RestartBackoff::default(),
        }
    }
}
