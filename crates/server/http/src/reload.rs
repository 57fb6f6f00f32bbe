//! Reloads files when they change.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime};

use tracing::{error, info};

/// Polling interval.
const TICK: Duration = Duration::from_secs(1);

/// The last value that was read. A change that cannot be read is logged and keeps the previous
/// value.
#[derive(Debug)]
pub struct Reloaded<T> {
    value: RwLock<Arc<T>>,
}

/// Modification time and size of each file; `None` for a missing one.
type Stamp = Vec<Option<(SystemTime, u64)>>;

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Reads now, and on a thread reloads whenever one of `files` has changed, until the last clone
    /// is dropped.
    ///
    /// # Errors
    /// The error of the first read.
    pub fn start(
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<T, String> + Send + 'static,
    ) -> Result<Arc<Self>, String> {
        Self::start_every(TICK, files, read)
    }

    fn start_every(
        tick: Duration,
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<T, String> + Send + 'static,
    ) -> Result<Arc<Self>, String> {
        let stamp = stamp(&files);
        let reloaded = Arc::new(Self {
            value: RwLock::new(Arc::new(read()?)),
        });
        let weak = Arc::downgrade(&reloaded);
        // Without a thread the files are not reloaded.
        let _ = std::thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || watch(tick, &weak, &files, stamp, read));
        Ok(reloaded)
    }

    pub fn current(&self) -> Arc<T> {
        let value = self.value.read().unwrap_or_else(PoisonError::into_inner);
        value.clone()
    }
}

fn watch<T>(
    tick: Duration,
    reloaded: &Weak<Reloaded<T>>,
    files: &[PathBuf],
    mut seen: Stamp,
    read: impl Fn() -> Result<T, String>,
) {
    loop {
        std::thread::sleep(tick);
        let Some(reloaded) = reloaded.upgrade() else {
            return;
        };
        let now = stamp(files);
        if now == seen {
            continue;
        }
        seen = now;
        match read() {
            Ok(value) => {
                let value = Arc::new(value);
                *reloaded
                    .value
                    .write()
                    .unwrap_or_else(PoisonError::into_inner) = value;
                info!("read again: {}", names(files));
            }
            Err(error) => error!("error: {error}; what was read before stays in force"),
        }
    }
}

fn stamp(files: &[PathBuf]) -> Stamp {
    let stamp = |file: &PathBuf| {
        let data = fs::metadata(file).ok()?;
        Some((data.modified().ok()?, data.len()))
    };
    files.iter().map(stamp).collect()
}

fn names(files: &[PathBuf]) -> String {
    let names: Vec<_> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn eventually(met: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !met() {
            assert!(Instant::now() < deadline, "not within 30 s");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_change_is_read_and_a_bad_one_changes_nothing() {
        let name = format!("penstock-reload-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        fs::write(&file, "1").unwrap();
        let path = file.clone();
        let read = move || {
            let text = fs::read_to_string(&path).map_err(|e| e.to_string())?;
            text.parse::<u32>().map_err(|e| e.to_string())
        };
        let tick = Duration::from_millis(20);
        let number = Reloaded::start_every(tick, vec![file.clone()], read).unwrap();
        assert_eq!(*number.current(), 1);
        fs::write(&file, "22").unwrap();
        eventually(|| *number.current() == 22);
        fs::write(&file, "bad").unwrap();
        std::thread::sleep(tick * 20);
        assert_eq!(*number.current(), 22);
        fs::remove_file(&file).unwrap();
        std::thread::sleep(tick * 20);
        assert_eq!(*number.current(), 22);
        fs::write(&file, "4444").unwrap();
        eventually(|| *number.current() == 4444);
        fs::remove_file(&file).unwrap();
    }
}
