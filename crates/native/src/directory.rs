//! Per-process directories for sockets and memory-mapped files.

use std::path::PathBuf;

use penstock_engine_client::SocketDir;
use pyo3::prelude::*;

/// A new directory in `parent`, private to this user and process. Directories that killed processes
/// left in `parent` are removed first. The new directory is removed with this object if it is
/// empty.
#[pyclass(frozen)]
pub(crate) struct PrivateDirectory {
    directory: SocketDir,
}

#[pymethods]
impl PrivateDirectory {
    /// OSError if it cannot be created.
    #[new]
    fn new(parent: PathBuf) -> PyResult<Self> {
        Ok(Self {
            directory: SocketDir::private_in(&parent)?,
        })
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }
}
