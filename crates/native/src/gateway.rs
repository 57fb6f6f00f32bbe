//! The gateway process, for the command line.

use penstock_gateway::{Config, Reread, StartError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Runs the gateway with its configuration (JSON) until it is drained; returns the process's exit
/// code. `reread` rebuilds the configuration from the cluster's resources (a JSON array) when they,
/// or a file that the configuration reads, have changed.
#[pyfunction]
#[pyo3(signature = (config_json, reread=None, /))]
pub(crate) fn gateway(
    py: Python<'_>,
    config_json: &str,
    reread: Option<Py<PyAny>>,
) -> PyResult<i32> {
    let reread = reread.map(|function| -> Reread {
        Box::new(move |resources: &str| {
            let called = |py: Python<'_>| {
                let made = function.call1(py, (resources,))?;
                made.extract::<String>(py)
            };
            Python::attach(called).map_err(|error| error.to_string())
        })
    });
    py.detach(|| penstock_gateway::run(config_json, reread))
        .map_err(|error| match error {
            StartError::Config(_) | StartError::Profile { .. } | StartError::Fleet { .. } => {
                PyValueError::new_err(error.to_string())
            }
            StartError::Bind { .. } | StartError::System(_) => {
                PyRuntimeError::new_err(error.to_string())
            }
        })
}

/// Validates a gateway's configuration (JSON); returns the error message, if any.
#[pyfunction]
#[pyo3(signature = (config_json, /))]
pub(crate) fn gateway_complaint(config_json: &str) -> Option<String> {
    Config::from_json(config_json).err()
}
