use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::socket_dir::{SOCKET_NAME, SocketDir};
use crate::{EngineError, SocketPlace};

/// The socket that engines connect to, mode 0600. Drop removes the socket and the directory created
/// for it.
#[derive(Debug)]
pub(crate) struct EngineSocket {
    listener: UnixListener,
    path: PathBuf,
    _dir: SocketDir,
}

impl EngineSocket {
    /// Binds the socket; a stale socket file without a listener is replaced.
    pub(crate) fn bind(place: &SocketPlace) -> Result<Self, EngineError> {
        let dir = SocketDir::open(place)?;
        let path = dir.path().join(SOCKET_NAME);
        Ok(Self {
            listener: listen(&path)?,
            path,
            _dir: dir,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next connection of a process of the same user; other connections are closed.
    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            if is_ours(stream.peer_cred()?.uid()) {
                return Ok(stream);
            }
        }
    }

    /// Closes connections in the backlog, which belong to a process that has exited.
    pub(crate) async fn discard_waiting(&self) {
        while let Ok(Ok(_)) = timeout(Duration::ZERO, self.listener.accept()).await {}
    }
}

impl Drop for EngineSocket {
    fn drop(&mut self) {
        // Best effort: an error cannot be handled here, and the file may be gone already.
        let _ = fs::remove_file(&self.path);
    }
}

fn is_ours(uid: u32) -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    uid == unsafe { libc::geteuid() }
}

fn listen(path: &Path) -> Result<UnixListener, EngineError> {
    remove_stale(path)?;
    let bound = UnixListener::bind(path).and_then(|listener| {
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(listener)
    });
    bound.map_err(|source| EngineError::Listen {
        path: path.to_owned(),
        source,
    })
}

fn remove_stale(path: &Path) -> Result<(), EngineError> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let path = path.to_owned();
    if !metadata.file_type().is_socket() {
        return Err(EngineError::NotASocket { path });
    }
    if StdUnixStream::connect(&path).is_ok() {
        return Err(EngineError::InUse { path });
    }
    fs::remove_file(&path).map_err(|source| EngineError::Listen { path, source })
}
