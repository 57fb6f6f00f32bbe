//! The gateway for the command line.

use penstock_gateway::StartError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// Runs the gateway with its configuration (JSON) until it is drained; returns the process's exit
/// code.
#[pyfunction]
pub(crate) fn gateway(py: Python<'_>, config_json: &str) -> PyResult<i32> {
    py.detach(|| penstock_gateway::run(config_json))
        .map_err(|error| match error {
            StartError::Config(_) | StartError::Profile { .. } | StartError::Fleet { .. } => {
                PyValueError::new_err(error.to_string())
            }
            StartError::Bind { .. } | StartError::System(_) => {
                PyRuntimeError::new_err(error.to_string())
            }
        })
}
