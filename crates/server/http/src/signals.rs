//! SIGTERM, SIGINT and SIGHUP.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The termination signals. A signal that was ignored when the process started stays ignored:
/// `nohup` ignores SIGHUP, and an API server makes its engine ignore all three.
#[derive(Debug)]
pub struct Signals {
    terminate: Option<Signal>,
    interrupt: Option<Signal>,
    hangup: Option<Signal>,
}

impl Signals {
    /// Installs the handlers. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// A handler cannot be installed.
    pub fn install() -> std::io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let handled = |kind: SignalKind| {
            let bit = ignored.unwrap_or(0) >> (kind.as_raw_value() - 1) & 1;
            (bit == 0).then(|| signal(kind)).transpose()
        };
        Ok(Self {
            terminate: handled(SignalKind::terminate())?,
            interrupt: handled(SignalKind::interrupt())?,
            hangup: handled(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal of any kind.
    pub async fn next(&mut self) {
        tokio::select! {
            () = next_of(&mut self.terminate) => {}
            () = next_of(&mut self.interrupt) => {}
            () = next_of(&mut self.hangup) => {}
        }
    }
}

async fn next_of(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
