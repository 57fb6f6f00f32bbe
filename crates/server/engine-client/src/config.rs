use std::path::PathBuf;
use std::time::Duration;

/// How to run and judge one engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Program and arguments of the engine; `{socket}` in any of them becomes the socket's path.
    /// `None` starts nothing: an external engine connects.
    pub argv: Option<Vec<String>>,
    /// Standard input of the program: what no other user of the host may read.
    pub input: String,
    pub socket: SocketPlace,
    /// An engine from which no STEP came for so long is not healthy; see
    /// [`crate::Engine::healthy`].
    pub stall_timeout: Duration,
    /// From the start of the process, or from the connection when nothing is started, to READY.
    pub start_timeout: Duration,
    pub restart_backoff: RestartBackoff,
}

/// Where the socket `engine.sock` is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketPlace {
    /// In this directory, which is made and removed unless it exists.
    Directory(PathBuf),
    /// In a fresh private directory here. Those that killed front doors left here are removed.
    PrivateIn(PathBuf),
}

impl Default for SocketPlace {
    /// Private, in the system's temporary directory.
    fn default() -> Self {
        Self::PrivateIn(std::env::temp_dir())
    }
}

/// How long to wait before the engine is started again. Doubles from `initial` to `max`.
#[derive(Debug, Clone, Copy)]
pub struct RestartBackoff {
    pub initial: Duration,
    pub max: Duration,
    /// An engine that was ready for so long before it was lost starts from `initial` again.
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
