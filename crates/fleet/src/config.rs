use std::path::PathBuf;
use std::time::Duration;

/// How to run and judge one engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Program and arguments of the engine; `{socket}` in any of them becomes the socket's path. `None` starts nothing: an
    /// engine that somebody else runs connects.
    pub argv: Option<Vec<String>>,
    /// Where the socket `engine.sock` is made. `None` is a private directory under `$XDG_RUNTIME_DIR` or the temporary directory.
    pub socket_dir: Option<PathBuf>,
    /// An engine from which no STEP came for so long is not healthy.
    pub stall_timeout: Duration,
    /// From the start of the process, or from the connection when nothing is started, to READY.
    pub start_timeout: Duration,
    pub restart_backoff: RestartBackoff,
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
            socket_dir: None,
            stall_timeout: Duration::from_secs(30),
            start_timeout: Duration::from_secs(600),
            restart_backoff: RestartBackoff::default(),
        }
    }
}
