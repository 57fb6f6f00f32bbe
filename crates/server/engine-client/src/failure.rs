use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use penstock_wire::FrameError;

use crate::connection::Disconnect;

/// Cause of a lost engine. The text is sent to every client whose request failed with it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineFailure {
    #[error("engine process {}", describe(*.0))]
    Exited(ExitStatus),
    #[error("{0}")]
    Fatal(String),
    #[error("engine closed its connection")]
    Closed,
    #[error("engine connection broke: {0}")]
    Broken(io::Error),
    #[error("engine broke the wire protocol: {0}")]
    Malformed(FrameError),
    #[error("engine broke the wire protocol: {got} came {when}")]
    OutOfOrder {
        got: &'static str,
        when: &'static str,
    },
    #[error("engine was not ready within {0:?}")]
    StartTimeout(Duration),
    #[error("engine program {program} cannot be started: {source}")]
    Spawn { program: String, source: io::Error },
    #[error("engine connections cannot be accepted: {0}")]
    Accept(io::Error),
}

impl From<Disconnect> for EngineFailure {
    fn from(end: Disconnect) -> Self {
        match end {
            Disconnect::Closed => Self::Closed,
            Disconnect::Broken(error) => Self::Broken(error),
            Disconnect::Malformed(error) => Self::Malformed(error),
        }
    }
}

impl EngineFailure {
    /// Whether a failure before the first READY is permanent, so that a restart would fail in the
    /// same way: the engine sent FATAL, exited by itself, or is the wrong program.
    pub(crate) fn is_final_before_ready(&self) -> bool {
        match self {
            Self::Fatal(_) | Self::Malformed(_) | Self::OutOfOrder { .. } | Self::Spawn { .. } => {
                true
            }
            Self::Exited(status) => status.code().is_some(),
            _ => false,
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => match signal_name(signal) {
            Some(name) => format!("was killed by signal {signal} ({name})"),
            None => format!("was killed by signal {signal}"),
        },
        (None, None) => "ended".to_owned(),
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    const NAMES: [(i32, &str); 9] = [
        (libc::SIGABRT, "SIGABRT"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGHUP, "SIGHUP"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGINT, "SIGINT"),
        (libc::SIGKILL, "SIGKILL"),
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGTERM, "SIGTERM"),
    ];
    NAMES
        .iter()
        .find(|(number, _)| *number == signal)
        .map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_exit_code_and_the_signal() {
        let exited = EngineFailure::Exited(ExitStatus::from_raw(3 << 8));
        assert_eq!(exited.to_string(), "engine process exited with code 3");
        let killed = EngineFailure::Exited(ExitStatus::from_raw(9));
        assert_eq!(
            killed.to_string(),
            "engine process was killed by signal 9 (SIGKILL)"
        );
        let odd = EngineFailure::Exited(ExitStatus::from_raw(40));
        assert_eq!(odd.to_string(), "engine process was killed by signal 40");
    }
}
