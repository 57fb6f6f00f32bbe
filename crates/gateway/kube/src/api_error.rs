//! Errors of requests, lists and watches.

/// Why a request, a list or a watch failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// Settings of the server or of the login are invalid or missing. The text names the file or
    /// the command.
    #[error("{0}")]
    Credentials(String),
    #[error("{0}")]
    Unreachable(String),
    /// The connection of a watch was lost; the watch can continue from its last version.
    #[error("the watch was cut off: {0}")]
    Cut(String),
    /// The server sent an error response, or an error event in a watch.
    #[error("{status}: {message}")]
    Refused { status: u16, message: String },
    #[error("no answer of an API server: {0}")]
    Malformed(String),
}

impl ApiError {
    /// Whether the watch cannot continue from the last resource version, so that a new list is
    /// needed.
    pub(crate) fn needs_list(&self) -> bool {
        match self {
            // Authentication or overload: the version stays valid.
            Self::Refused { status, .. } => !matches!(status, 401 | 403 | 429 | 503),
            Self::Malformed(_) => true,
            Self::Credentials(_) | Self::Unreachable(_) | Self::Cut(_) => false,
        }
    }

    /// Whether the API server does not know this kind of objects.
    pub(crate) fn is_unknown_kind(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether the error occurs in normal operation of a watch, so that it is not logged.
    pub(crate) fn is_usual(&self) -> bool {
        let gone = matches!(self, Self::Refused { status: 410, .. });
        gone || matches!(self, Self::Cut(_)) || self.is_unknown_kind()
    }
}
