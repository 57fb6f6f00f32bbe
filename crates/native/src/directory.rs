//! Directories of one process for its sockets and files in memory.

use std::path::PathBuf;

use penstock_engine_client::SocketDir;
use pyo3::prelude::*;

/// A new directory in `parent` for this user and process alone. Directories there whose processes
/// were killed are removed first. It goes with the object, if nothing is in it.
#[pyclass(frozen)]
pub(crate) struct PrivateDirectory {
    directory: SocketDir,
}

#[pymethods]
impl PrivateDirectory {
    /// OSError where there can be none.
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
