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

/// Runs OpenAI-compatible servers with modelled timing until a signal; returns the process's exit
/// code.
#[pyfunction]
pub(crate) fn sim_serve(py: Python<'_>, config_json: &str) -> PyResult<i32> {
    py.detach(|| penstock_sim::serve_http(config_json))
        .map_err(error)
}

/// Replays a scenario on the simulated engine's batcher; `scenario` and the result are JSON.
#[pyfunction]
pub(crate) fn sim_replay(py: Python<'_>, scenario: &str) -> PyResult<String> {
    py.detach(|| penstock_sim::replay(scenario)).map_err(error)
}

/// Replays a trace on modelled replicas; `setup` and the returned report are JSON. An exception in
/// `progress(arrived, requests)` ends the replay.
#[pyfunction]
pub(crate) fn fleet_replay(
    py: Python<'_>,
    setup: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let mut raised = None;
    let report = py.detach(|| {
        penstock_sim::fleet_replay(setup, |arrived, requests| {
            Python::attach(|py| {
                let called = py.check_signals().and_then(|()| match &progress {
                    Some(progress) => progress.call1(py, (arrived, requests)).map(drop),
                    None => Ok(()),
                });
                raised = called.err();
                raised.is_none()
            })
        })
    });
    raised.map_or_else(|| report.map_err(error), Err)
}

/// Runs an engine with modelled timing, which connects to an API server's socket; returns the
/// process's exit code.
#[pyfunction]
pub(crate) fn sim_wire(py: Python<'_>, socket: &str, config_json: &str) -> PyResult<i32> {
    py.detach(|| penstock_sim::serve_wire(socket, config_json))
        .map_err(error)
}
