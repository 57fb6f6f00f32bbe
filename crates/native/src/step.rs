//! Decoder steps: plans in, results out. Waits release the GIL.

use std::time::{Duration, Instant};

use penstock_decoder::{Decoder, DecoderError};
use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

use crate::plan::{read_plan, write_result};

/// Interval at which a wait checks for Python signals.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// Starts a step without waiting.
pub(crate) fn submit(decoder: &Decoder, plan: &Bound<'_, PyAny>) -> PyResult<StepFuture> {
    let native = decoder.submit(read_plan(plan)?);
    Ok(StepFuture { native })
}

/// A step in flight.
#[pyclass(frozen)]
pub(crate) struct StepFuture {
    native: penstock_decoder::StepFuture,
}

#[pymethods]
impl StepFuture {
    /// The step's result. Waits up to `timeout` seconds (default: no limit), then raises
    /// `TimeoutError`.
    #[pyo3(signature = (timeout=None))]
    fn result<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        let deadline = timeout.map(|t| Instant::now() + Duration::from_secs_f64(t.clamp(0.0, 1e9)));
        loop {
            let left = deadline.map_or(SIGNAL_CHECK, |d| {
                d.saturating_duration_since(Instant::now())
                    .min(SIGNAL_CHECK)
            });
            if let Some(result) = py.detach(|| self.native.result(left)) {
                return write_result(py, result.map_err(error)?);
            }
            py.check_signals()?;
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Err(PyTimeoutError::new_err("the step is still running"));
            }
        }
    }
}

/// Converts a decoder's error to its Python exception.
pub(crate) fn error(e: DecoderError) -> PyErr {
    match e {
        DecoderError::Group(_) => PyConnectionError::new_err(e.to_string()),
        DecoderError::Failed(_) => PyRuntimeError::new_err(e.to_string()),
        _ => PyValueError::new_err(e.to_string()),
    }
}
