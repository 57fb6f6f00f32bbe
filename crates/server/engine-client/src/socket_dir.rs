use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{EngineError, SocketPlace};

/// Name of the socket in its directory.
pub(crate) const SOCKET_NAME: &str = "engine.sock";

/// A directory for sockets of this process. Drop removes it if it was created here and is empty.
#[derive(Debug)]
pub struct SocketDir {
    path: PathBuf,
    made: bool,
    /// Lock that the kernel releases when this process ends for any reason. An unlocked directory
    /// is stale.
    _lock: Option<File>,
}

impl SocketDir {
    pub(crate) fn open(place: &SocketPlace) -> Result<Self, EngineError> {
        let (path, made) = match place {
            SocketPlace::Directory(path) => (path.clone(), make(path)?),
            SocketPlace::PrivateIn(parent) => {
                remove_left_over(parent);
                (make_private(parent)?, true)
            }
        };
        let lock = File::open(&path).ok().filter(|dir| dir.try_lock().is_ok());
        Ok(Self {
            path,
            made,
            _lock: lock,
        })
    }

    /// Creates a directory in `parent`, after removing stale directories of killed processes.
    pub fn private_in(parent: &Path) -> io::Result<Self> {
        let place = SocketPlace::PrivateIn(parent.to_owned());
        Self::open(&place).map_err(|error| match error {
            EngineError::SocketDir { source, .. } => source,
            other => io::Error::other(other),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        if self.made {
            // Best effort: an error cannot be handled here, and the directory may be gone already.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Creates a directory; false if it already exists.
fn make(dir: &Path) -> Result<bool, EngineError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(EngineError::SocketDir {
            path: dir.to_owned(),
            source,
        }),
    }
}

fn make_private(parent: &Path) -> Result<PathBuf, EngineError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("penstock-{}-{number}", std::process::id()));
        // If the directory exists, an earlier process with our pid left it, or another user created
        // it: do not use it.
        if make(&dir)? {
            return Ok(dir);
        }
    }
}

/// Removes the directories of killed processes. Best effort: a remaining directory is harmless.
fn remove_left_over(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let owner = entry.file_name().to_str().and_then(owner);
        if owner.is_some_and(is_dead) && is_ours(&entry.path()) {
            remove_if_unlocked(&entry.path());
        }
    }
}

/// Pid in a directory's name.
fn owner(name: &str) -> Option<i32> {
    let (pid, _) = name.strip_prefix("penstock-")?.split_once('-')?;
    pid.parse().ok().filter(|pid| *pid > 0)
}

fn is_dead(pid: i32) -> bool {
    // SAFETY: signal 0 is not delivered; the call only checks that the process exists.
    let answer = unsafe { libc::kill(pid, 0) };
    let gone = answer != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    gone || is_unreaped(pid)
}

/// Whether the process is a zombie, as in containers without an init.
fn is_unreaped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    state.starts_with(['Z', 'X'])
}

fn is_ours(dir: &Path) -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let user = unsafe { libc::geteuid() };
    fs::symlink_metadata(dir).is_ok_and(|found| found.is_dir() && found.uid() == user)
}

/// Removes a directory if its lock is free. The pid alone is not sufficient: a process that does
/// not exist here may run in another container that shares the directory. Only the socket and
/// nested directories of the same kind are removed; the directory itself is removed only if it is
/// then empty.
fn remove_if_unlocked(dir: &Path) {
    let Ok(lock) = File::open(dir) else { return };
    if lock.try_lock().is_err() {
        return;
    }
    remove_left_over(dir);
    let socket = dir.join(SOCKET_NAME);
    if fs::symlink_metadata(&socket).is_ok_and(|found| found.file_type().is_socket()) {
        let _ = fs::remove_file(&socket);
    }
    let _ = fs::remove_dir(dir);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// `penstock serve --replicas` nests the directories of its replicas in its own.
    #[test]
    fn directories_in_left_over_directories_are_removed() {
        let name = format!("penstock-socket-dir-test-{}", std::process::id());
        let parent = std::env::temp_dir().join(name);
        let dead = i32::MAX; // above the largest process number
        let replica = parent.join(format!("penstock-{dead}-0/penstock-{dead}-1"));
        fs::create_dir_all(&replica).unwrap();
        drop(std::os::unix::net::UnixListener::bind(replica.join(SOCKET_NAME)).unwrap());
        let kept = parent.join(format!("penstock-{dead}-2/of somebody"));
        fs::create_dir_all(&kept).unwrap();
        let own = SocketDir::private_in(&parent).unwrap();
        let mut left: Vec<_> = fs::read_dir(&parent).unwrap().flatten().collect();
        left.sort_by_key(fs::DirEntry::path);
        let left: Vec<_> = left.iter().map(fs::DirEntry::path).collect();
        let mut expected = vec![
            own.path().to_owned(),
            parent.join(format!("penstock-{dead}-2")),
        ];
        expected.sort();
        assert_eq!(left, expected);
        drop(own);
        assert!(kept.exists());
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_process_that_was_not_waited_for_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        while !is_dead(pid) {
            std::thread::yield_now();
        }
        assert!(is_unreaped(pid) && !is_dead(std::process::id().cast_signed()));
        child.wait().unwrap();
    }

    #[test]
    fn the_owner_is_in_the_name() {
        assert_eq!(owner("penstock-17-0"), Some(17));
        assert_eq!(owner("penstock-17-abc_x"), Some(17));
        for other in [
            "penstock-17",
            "penstock--1-0",
            "penstock-0-0",
            "x-17-0",
            "penstock-a-0",
        ] {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}
