//! Sources of the list of backends. A new kind of source needs a file here and a line in
//! [`follow`].

mod dns;
mod file;
mod kubernetes;

use std::time::Duration;

use penstock_kube::Timing;
use tokio::sync::watch;

use crate::backend::{BackendError, Source, Target, targets};

pub use file::FileError;

/// Channel of the latest list of backends; it holds `None` until the first list.
pub(crate) type Found = watch::Sender<Option<Vec<Target>>>;
pub(crate) type List = watch::Receiver<Option<Vec<Target>>>;

/// Why a source cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("{0}")]
    Backend(#[from] BackendError),
    #[error("{0}")]
    File(#[from] FileError),
}

/// Follows a source in a task until all receivers of the list are dropped. Static lists and files
/// are loaded immediately; files are read again and host names looked up each `period`; Kubernetes
/// is watched.
///
/// # Errors
/// [`SourceError`]: the initial list is invalid.
pub(crate) fn follow(source: Source, period: Duration) -> Result<List, SourceError> {
    let (found, list) = watch::channel(None);
    match source {
        Source::Static(backends) => {
            found.send_replace(Some(targets(&backends)?));
        }
        Source::File(path) => {
            let file = file::File::open(path)?;
            found.send_replace(Some(file.targets()));
            tokio::spawn(file.follow(found, period));
        }
        Source::Dns { name, port } => {
            tokio::spawn(dns::Dns::new(name, port).follow(found, period));
        }
        Source::Kubernetes(pods) => {
            tokio::spawn(kubernetes::follow(*pods, Timing::default(), found));
        }
    }
    Ok(list)
}
