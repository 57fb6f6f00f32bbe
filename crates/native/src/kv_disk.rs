//! Functions of `penstock kv` for the directory of a disk tier. They return JSON texts.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use penstock_kvstore::disk::admin::{self, Progress, Rules};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Serialize;

/// Minimum interval between two calls of `watch`; the last call is always made.
const OFTEN: Duration = Duration::from_millis(100);

/// Inventory of all KV stores below `path` (`admin::Inventory`).
#[pyfunction]
#[pyo3(signature = (path, /))]
pub(crate) fn kv_inventory(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    json(py.detach(|| admin::inventory(&path)))
}

/// Reads and verifies every file; returns `admin::Verified`. Calls `watch(done, total)` with
/// numbers of bytes; an exception ends the work.
#[pyfunction]
#[pyo3(signature = (path, put_aside, watch, /))]
pub(crate) fn kv_verify(
    py: Python<'_>,
    path: PathBuf,
    put_aside: bool,
    watch: Py<PyAny>,
) -> PyResult<String> {
    let mut watch = Watch::new(watch);
    let found = py.detach(|| admin::verify(&path, put_aside, &mut |progress| watch.tell(progress)));
    watch.raised.map_or_else(|| json(found), Err)
}

/// Removes the chunks that the rules select (`admin::Rules`), and files that are damaged or
/// abandoned; returns `admin::Collected`. Calls `watch(done, total)` with numbers of chunks.
#[pyfunction]
#[pyo3(signature = (path, limit_bytes, older_than_s, store, watch, /))]
pub(crate) fn kv_collect(
    py: Python<'_>,
    path: PathBuf,
    limit_bytes: Option<u64>,
    older_than_s: Option<u64>,
    store: Option<String>,
    watch: Py<PyAny>,
) -> PyResult<String> {
    let older_than = older_than_s.map(Duration::from_secs);
    let rules = Rules {
        limit_bytes,
        older_than,
        store,
    };
    let mut watch = Watch::new(watch);
    let gone = py.detach(|| admin::collect(&path, &rules, &mut |progress| watch.tell(progress)));
    watch.raised.map_or_else(|| json(gone), Err)
}

/// A Python progress callback and its exception, if any.
struct Watch {
    function: Py<PyAny>,
    told: Instant,
    raised: Option<PyErr>,
}

impl Watch {
    fn new(function: Py<PyAny>) -> Self {
        Self {
            function,
            told: Instant::now(),
            raised: None,
        }
    }

    /// Calls the callback. Returns false to end the work.
    fn tell(&mut self, Progress { done, total }: Progress) -> bool {
        if self.told.elapsed() < OFTEN && done < total {
            return true;
        }
        self.told = Instant::now();
        let told = Python::attach(|py| {
            py.check_signals()?;
            self.function.call1(py, (done, total)).map(drop)
        });
        self.raised = told.err();
        self.raised.is_none()
    }
}

fn json<T: Serialize, E: ToString>(answer: Result<T, E>) -> PyResult<String> {
    let answer = answer.map_err(|error| PyValueError::new_err(error.to_string()))?;
    serde_json::to_string(&answer).map_err(|error| PyValueError::new_err(error.to_string()))
}
