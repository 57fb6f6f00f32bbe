use std::fmt;

/// An error of a template's parsing or rendering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// Line of the template, from 1; 0 = unknown.
    line: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    Syntax,
    /// The template called `raise_exception`; the message is the template's.
    Raised,
    /// The rendering exceeded a bound.
    Limit,
    Failed,
}

impl Error {
    fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            kind,
            message,
            line: 0,
        }
    }

    pub(super) fn syntax(message: impl Into<String>, line: u32) -> Self {
        Self {
            line,
            ..Self::new(ErrorKind::Syntax, message)
        }
    }

    pub(super) fn raised(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Raised, message)
    }

    pub(super) fn limit(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Limit, message)
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// Adds the line of the statement, unless the error already has one from a nested statement.
    pub(super) fn at(mut self, line: u32) -> Self {
        if self.line == 0 {
            self.line = line;
        }
        self
    }
}

/// An [`ErrorKind::Failed`] as a result.
pub(super) fn failed<T>(message: impl Into<String>) -> Result<T, Error> {
    Err(Error::failed(message))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match (self.kind, self.line) {
            (ErrorKind::Raised, _) | (_, 0) => Ok(()),
            (_, line) => write!(f, " (line {line})"),
        }
    }
}
