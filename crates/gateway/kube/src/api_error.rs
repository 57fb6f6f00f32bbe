//! Errors of a request, and those that end a list or a watch.

/// Why a request, a list or a watch failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// Invalid or missing settings of the server or of the login: names the file or the command.
    #[error("{0}")]
    Credentials(String),
    #[error("{0}")]
    Unreachable(String),
    /// Only the connection of the watch was lost.
    #[error("the watch was cut off: {0}")]
    Cut(String),
    /// An error response, or an error event of a watch.
    #[error("{status}: {message}")]
    Refused { status: u16, message: String },
    #[error("no answer of an API server: {0}")]
    Malformed(String),
}

impl ApiError {
    /// The resource version is no longer usable: a new list is needed.
    pub(crate) fn needs_list(&self) -> bool {
        match self {
            // Authentication or overload: the version stays valid.
            Self::Refused { status, .. } => !matches!(status, 401 | 403 | 429 | 503),
            Self::Malformed(_) => true,
            Self::Credentials(_) | Self::Unreachable(_) | Self::Cut(_) => false,
        }
    }

    /// The API server does not have this kind.
    pub(crate) fn is_unknown_kind(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Normal in the life of a watch, and not logged.
    pub(crate) fn is_usual(&self) -> bool {
        let gone = matches!(self, Self::Refused { status: 410, .. });
        gone || matches!(self, Self::Cut(_)) || self.is_unknown_kind()
    }
}
