//! Start-up checks of a disk tier's directory; their errors name the remedy.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::statvfs;

use super::{io as files, layout};
use crate::tier::StartError;

/// Creates the directory `path`, whose parent must exist, and tests that files can be created in
/// it.
pub(crate) fn prepare(path: &Path, temporary: &str) -> Result<(), StartError> {
    let shown = path.display();
    match fs::metadata(path) {
        Ok(found) if !found.is_dir() => {
            return Err(StartError(format!(
                "the disk tier's path {shown} is not a directory; name one, or remove the file"
            )));
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => make(path)?,
        Err(error) => {
            return Err(StartError(format!(
                "the disk tier's path {shown} cannot be read: {error}"
            )));
        }
    }
    let root = layout::root(path);
    let tried = files::create_directories(&root).and_then(|()| try_to_write(&root.join(temporary)));
    tried.map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => {
                "give this user the right to write there, or name another path"
            }
            ErrorKind::ReadOnlyFilesystem => "mount it for writing, or name another path",
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "free some room, or name another path"
            }
            _ => "name a directory that can be written",
        };
        StartError(format!(
            "the disk tier's path {shown} cannot be written: {error}; {remedy}"
        ))
    })
}

/// Checks that at least one chunk of `chunk` bytes fits into the limit and the file system, of
/// which the tier already uses `used` bytes.
pub(crate) fn check_room(path: &Path, limit: u64, chunk: u64, used: u64) -> Result<(), StartError> {
    let shown = path.display();
    if limit < chunk {
        return Err(StartError(format!(
            "the disk tier {shown} may take {limit} bytes, less than one chunk of {chunk}; give \
             it more"
        )));
    }
    let Ok(system) = statvfs(path) else {
        // Not every file system reports its free space.
        return Ok(());
    };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free.saturating_add(used) < chunk {
        return Err(StartError(format!(
            "the file system of the disk tier's path {shown} is full ({free} bytes free, a \
             chunk takes {chunk}); free some room, or name another path"
        )));
    }
    Ok(())
}

fn make(path: &Path) -> Result<(), StartError> {
    let made = match DirBuilder::new().mode(0o700).create(path) {
        // Race with another rank or replica.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    made.map_err(|error| {
        let (shown, parent) = (path.display(), path.parent().unwrap_or(path).display());
        let remedy = match error.kind() {
            ErrorKind::NotFound => {
                format!("{parent} is not there either; make it first (mkdir -p)")
            }
            _ => format!("make it, or give this user the right to write in {parent}"),
        };
        StartError(format!(
            "the disk tier's path {shown} is not there and cannot be made: {error}; {remedy}"
        ))
    })
}

fn try_to_write(file: &Path) -> io::Result<()> {
    let written = fs::write(file, [0; 4096]);
    let removed = fs::remove_file(file);
    written.and(removed)
}
