//! Why a list or a watch has ended.

/// The text goes to the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WatchError {
    #[error("{0}")]
    Credentials(String),
    #[error("{0}")]
    Unreachable(String),
    /// The connection of a watch, not more.
    #[error("the watch was cut off: {0}")]
    Cut(String),
    /// An answer, or an event of a watch.
    #[error("{status}: {message}")]
    Refused { status: u16, message: String },
    #[error("no answer of an API server: {0}")]
    Malformed(String),
}

impl WatchError {
    /// The version does not help any more: the objects have to be listed.
    pub(crate) fn needs_list(&self) -> bool {
        match self {
            // Credentials, or too much to do: the version is as good as before.
            Self::Refused { status, .. } => !matches!(status, 401 | 403 | 429 | 503),
            Self::Malformed(_) => true,
            Self::Credentials(_) | Self::Unreachable(_) | Self::Cut(_) => false,
        }
    }

    /// The API server has no such kind.
    pub(crate) fn is_unknown_kind(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Part of every watch's life, and not worth a line in the log.
    pub(crate) fn is_usual(&self) -> bool {
        let gone = matches!(self, Self::Refused { status: 410, .. });
        gone || matches!(self, Self::Cut(_)) || self.is_unknown_kind()
    }
}
