//! Simulated engines for the command line.

use penstock_sim::SimError;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

fn error(e: SimError) -> PyErr {
    match e {
        SimError::Config(message) => PyValueError::new_err(message),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}

/// Runs OpenAI servers with modelled timing until a signal; returns the process's exit code.
#[pyfunction]
pub(crate) fn sim_serve(py: Python<'_>, config_json: &str) -> PyResult<i32> {
    py.detach(|| penstock_sim::serve_http(config_json))
        .map_err(error)
}

/// Plays a scenario on the simulated engine's batcher; both are JSON.
#[pyfunction]
pub(crate) fn sim_replay(py: Python<'_>, scenario: &str) -> PyResult<String> {
    py.detach(|| penstock_sim::replay(scenario)).map_err(error)
}

/// Runs an engine with modelled timing behind a front door's socket; returns the process's exit
/// code.
#[pyfunction]
pub(crate) fn sim_wire(py: Python<'_>, socket: &str, config_json: &str) -> PyResult<i32> {
    py.detach(|| penstock_sim::serve_wire(socket, config_json))
        .map_err(error)
}
