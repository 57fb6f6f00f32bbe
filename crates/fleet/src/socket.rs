use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::FleetError;

const SOCKET_NAME: &str = "engine.sock";

/// The socket that engines connect to, mode 0600. It and the directory made for it are removed on drop.
#[derive(Debug)]
pub(crate) struct EngineSocket {
    listener: UnixListener,
    path: PathBuf,
    made_dir: Option<PathBuf>,
}

impl EngineSocket {
    /// Listens in `dir`, or in a private directory. A socket that nobody listens on any more is replaced.
    pub(crate) fn bind(dir: Option<&Path>) -> Result<Self, FleetError> {
        let (dir, made_dir) = match dir {
            Some(dir) => make_named_dir(dir)?,
            None => make_private_dir()?,
        };
        let path = dir.join(SOCKET_NAME);
        listen(&path)
            .map(|listener| Self {
                listener,
                path,
                made_dir: made_dir.clone(),
            })
            .inspect_err(|_| remove_dir(made_dir.as_deref()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection of a process of our own user; others are closed.
    pub(crate) async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.listener.accept().await?;
            if is_ours(stream.peer_cred()?.uid()) {
                return Ok(stream);
            }
        }
    }

    /// Closes connections that nobody accepted: they belong to a process that is gone.
    pub(crate) async fn discard_waiting(&self) {
        while let Ok(Ok(_)) = timeout(Duration::ZERO, self.listener.accept()).await {}
    }
}

impl Drop for EngineSocket {
    fn drop(&mut self) {
        // Errors have no reader here, and somebody may have cleaned up before us.
        let _ = fs::remove_file(&self.path);
        remove_dir(self.made_dir.as_deref());
    }
}

fn is_ours(uid: u32) -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    uid == unsafe { libc::geteuid() }
}

fn remove_dir(made_dir: Option<&Path>) {
    if let Some(dir) = made_dir {
        let _ = fs::remove_dir(dir);
    }
}

fn listen(path: &Path) -> Result<UnixListener, FleetError> {
    remove_stale(path)?;
    let bound = UnixListener::bind(path).and_then(|listener| {
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(listener)
    });
    bound.map_err(|source| FleetError::Listen {
        path: path.to_owned(),
        source,
    })
}

fn remove_stale(path: &Path) -> Result<(), FleetError> {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    let path = path.to_owned();
    if !metadata.file_type().is_socket() {
        return Err(FleetError::NotASocket { path });
    }
    if StdUnixStream::connect(&path).is_ok() {
        return Err(FleetError::InUse { path });
    }
    fs::remove_file(&path).map_err(|source| FleetError::Listen { path, source })
}

type DirAndMade = (PathBuf, Option<PathBuf>);

fn make_named_dir(dir: &Path) -> Result<DirAndMade, FleetError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => Ok((dir.to_owned(), Some(dir.to_owned()))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok((dir.to_owned(), None)),
        Err(source) => Err(FleetError::SocketDir {
            path: dir.to_owned(),
            source,
        }),
    }
}

fn make_private_dir() -> Result<DirAndMade, FleetError> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let parent = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.is_dir());
    let parent = parent.unwrap_or_else(std::env::temp_dir);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("penstock-{}-{number}", std::process::id()));
        // One that exists was left by an earlier process with our number, or made by a stranger: not ours to use.
        if let (dir, made @ Some(_)) = make_named_dir(&dir)? {
            return Ok((dir, made));
        }
    }
}
