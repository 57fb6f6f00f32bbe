//! Backends from a file: a JSON array, or one URL per line. It is reloaded when its modification
//! time or size changes. An invalid or empty file leaves the previous list in use.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use penstock_http::shortened;
use serde::Deserialize;
use tracing::warn;

use super::Found;
use crate::backend::{Backend, Target, targets};

/// Maximum size of the file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Maximum length in bytes of an error text, which may quote the file.
const MOST_REASON: usize = 500;

/// Why a file of backends is invalid.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{path}: {error}", path = path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path}, line {line}: {reason}", path = path.display())]
    Line {
        path: PathBuf,
        line: usize,
        reason: String,
    },
}

/// A file, with its content when last read.
#[derive(Debug)]
pub(crate) struct File {
    path: PathBuf,
    stamp: Option<Stamp>,
    targets: Vec<Target>,
    /// Whether the file is empty or unreadable and a warning has been logged.
    missing: bool,
}

/// Modification time and size, to detect changes.
type Stamp = (SystemTime, u64);

impl File {
    /// # Errors
    /// [`FileError`]
    pub(crate) fn open(path: PathBuf) -> Result<Self, FileError> {
        let stamp = stamp(&path).ok();
        let targets = read(&path)?;
        Ok(Self {
            path,
            stamp,
            targets,
            missing: false,
        })
    }

    pub(crate) fn targets(&self) -> Vec<Target> {
        self.targets.clone()
    }

    pub(crate) async fn follow(mut self, found: Found, period: Duration) {
        loop {
            tokio::select! {
                () = found.closed() => return,
                () = tokio::time::sleep(period) => {}
            }
            if self.look() {
                found.send_replace(Some(self.targets()));
            }
        }
    }

    /// Returns whether the list changed. The file is small and local, so it is read on the async
    /// thread.
    fn look(&mut self) -> bool {
        let now = match stamp(&self.path) {
            Ok(now) => now,
            Err(error) => {
                if !std::mem::replace(&mut self.missing, true) {
                    let path = self.path.display();
                    warn!("{path}: {error}; its backends stay");
                }
                return false;
            }
        };
        self.missing = false;
        if self.stamp == Some(now) {
            return false;
        }
        let list = read(&self.path);
        if stamp(&self.path).ok() != Some(now) {
            return false; // written meanwhile: the next look reads it whole
        }
        self.stamp = Some(now);
        match list {
            Ok(targets) => {
                let changed = self.targets != targets;
                self.targets = targets;
                changed
            }
            Err(error) => {
                warn!("{error}; the former backends stay");
                false
            }
        }
    }
}

/// # Errors
/// The file is unreadable or empty. Empty counts as an error because a file that is being rewritten
/// is empty for a moment, which would remove all replicas.
fn stamp(path: &Path) -> io::Result<Stamp> {
    let data = fs::metadata(path)?;
    if data.len() == 0 {
        return Err(io::Error::other("the file is empty ([] is no backends)"));
    }
    Ok((data.modified()?, data.len()))
}

fn read(path: &Path) -> Result<Vec<Target>, FileError> {
    let io = |error| FileError::Io {
        path: path.to_owned(),
        error,
    };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(io)?;
    file.take(MAX_BYTES).read_to_string(&mut text).map_err(io)?;
    parse(&text).map_err(|(line, reason)| FileError::Line {
        path: path.to_owned(),
        line,
        reason: shortened(&reason, MOST_REASON),
    })
}

/// A backend, or its URL alone.
#[derive(Deserialize)]
#[serde(untagged)]
enum Item {
    Url(String),
    Backend(Backend),
}

/// # Errors
/// The number of the invalid line, counted from 1, and the reason.
fn parse(text: &str) -> Result<Vec<Target>, (usize, String)> {
    if text.trim_start().starts_with('[') {
        let items: Vec<Item> =
            serde_json::from_str(text).map_err(|error| (error.line(), error.to_string()))?;
        let backend = |item| match item {
            Item::Url(url) => Backend::new(url),
            Item::Backend(backend) => backend,
        };
        let backends: Vec<Backend> = items.into_iter().map(backend).collect();
        return targets(&backends).map_err(|error| {
            let before = text.split(error.url.as_str()).next().unwrap_or_default();
            (before.lines().count().max(1), error.to_string())
        });
    }
    let mut backends = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let url = line.split('#').next().unwrap_or_default().trim();
        if !url.is_empty() {
            let backend = Backend::new(url);
            Target::new(&backend).map_err(|error| (at + 1, error.to_string()))?;
            backends.push(backend);
        }
    }
    targets(&backends).map_err(|error| (1, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bases(text: &str) -> Result<Vec<String>, (usize, String)> {
        let bases = |found: Vec<Target>| found.iter().map(|one| one.base.to_string()).collect();
        parse(text).map(bases)
    }

    #[test]
    fn lines_and_json_are_read() {
        let two = ["http://a:1", "http://b:2"];
        assert_eq!(
            bases("# ours\nhttp://a:1\n\n  http://b:2 # spare\n").unwrap(),
            two
        );
        assert_eq!(
            bases(r#"["http://a:1", {"url": "http://b:2"}]"#).unwrap(),
            two
        );
        assert_eq!(bases("").unwrap(), [""; 0]);
    }

    #[test]
    fn a_changed_file_is_read_and_a_broken_one_changes_nothing() {
        let name = format!("penstock-backends-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "http://a:1\n").unwrap();
        let mut file = File::open(path.clone()).unwrap();
        assert!(!file.look());
        fs::write(&path, "http://a:1\nhttp://b:2\n").unwrap();
        assert!(file.look());
        assert_eq!(file.targets().len(), 2);
        for broken in ["http://a:1\nb\n", "[1]", "["] {
            fs::write(&path, broken).unwrap();
            assert!(!file.look());
        }
        // What a reader sees after the file is truncated and before it is written.
        fs::write(&path, "").unwrap();
        assert!(!file.look());
        fs::write(&path, "http://a:1\nhttp://c:2\n").unwrap();
        assert!(file.look());
        fs::write(&path, "[]").unwrap();
        assert!(file.look());
        assert_eq!(file.targets().len(), 0);
        fs::write(&path, "http://a:1\nhttp://b:2\n").unwrap();
        assert!(file.look());
        fs::remove_file(&path).unwrap();
        assert!(!file.look());
        assert_eq!(file.targets().len(), 2);
        assert!(matches!(File::open(path), Err(FileError::Io { .. })));
    }

    #[test]
    fn errors_name_their_line() {
        let line = |text| bases(text).unwrap_err().0;
        assert_eq!(line("http://a:1\nb:2\n"), 2);
        assert_eq!(line("[\"http://a:1\",\n\"http://b:2\"\n"), 3);
        assert_eq!(line("[\"http://a:1\",\n\n\"ftp://b:2\"]"), 3);
    }
}
