//! Errors of this crate.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

/// A defect in one file's bytes: the item, its offset and the problem. Has no path, because parsers
/// only get bytes; [`FormatError::Malformed`] adds the path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{item} at byte {offset}: {problem}")]
pub struct Fault {
    /// "header", "key `x`" or "tensor `x`".
    pub item: String,
    /// Byte offset in the file at which the faulty field starts.
    pub offset: usize,
    /// One line, of bounded length.
    pub problem: String,
}

impl Fault {
    pub(crate) fn new(item: impl Into<String>, offset: usize, problem: impl Into<String>) -> Self {
        Self {
            item: item.into(),
            offset,
            problem: one_line(&problem.into()),
        }
    }
}

/// A byte that the operating system cannot read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: tensor {} at byte {offset}: {source}", path.display(), quoted(tensor))]
pub struct Unreadable {
    pub path: PathBuf,
    pub tensor: String,
    /// Byte offset in the file.
    pub offset: usize,
    pub source: Arc<std::io::Error>,
}

/// An error of opening or reading a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },

    #[error("{}: {problem}", path.display())]
    NotACheckpoint { path: PathBuf, problem: String },

    #[error("{}: {fault}", path.display())]
    Malformed { path: PathBuf, fault: Fault },

    #[error(transparent)]
    Unreadable(#[from] Unreadable),

    #[error("{}: no tensor {}", path.display(), quoted(name))]
    MissingTensor { path: PathBuf, name: String },

    #[error("{}: tensor {} has type {}; readable types are \
        {}", path.display(), quoted(name), one_line(dtype), crate::DType::supported())]
    UnsupportedType {
        path: PathBuf,
        name: String,
        dtype: String,
    },
}

/// Text with words from an untrusted file, fit for one line of a log: control characters and line
/// separators are escaped, and it is cut after 1000 characters.
pub fn one_line(text: &str) -> String {
    const LONGEST: usize = 1000;
    let mut out = String::new();
    for c in text.chars().take(LONGEST) {
        match c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            true => out.extend(c.escape_debug()),
            false => out.push(c),
        }
    }
    if text.chars().nth(LONGEST).is_some() {
        out.push_str("...");
    }
    out
}

/// A name from an untrusted file, suitable for one line of a log: escaped and at most 80 characters
/// long.
pub(crate) fn quoted(name: &str) -> String {
    const LONGEST: usize = 80;
    let mut out = String::from("`");
    for c in name.chars().take(LONGEST) {
        // Writing to a String cannot fail.
        let _ = write!(out, "{}", c.escape_debug());
    }
    if name.chars().nth(LONGEST).is_some() {
        out.push_str("...");
    }
    out.push('`');
    out
}
