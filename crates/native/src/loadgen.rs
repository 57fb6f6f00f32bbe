//! The benchmark's load generator.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use penstock_loadgen::{LoadRun as Run, Request, RunError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

fn error(e: RunError) -> PyErr {
    let message = e.to_string();
    match e {
        RunError::Target(_) | RunError::Due { .. } => PyValueError::new_err(message),
        RunError::State(_) | RunError::Thread(_) => PyRuntimeError::new_err(message),
    }
}

/// A load on its own thread: requests are added, sent when due, and recorded.
#[pyclass(frozen)]
pub(crate) struct LoadRun {
    run: Run,
}

#[pymethods]
impl LoadRun {
    /// `target`: JSON with the URL, headers and settings.
    #[new]
    fn new(target: &str) -> PyResult<Self> {
        Ok(Self {
            run: Run::new(target).map_err(error)?,
        })
    }

    /// Adds requests (due, must_produce, body) with ascending due times, in seconds after the
    /// start. `must_produce` is the required number of output tokens; 0 = any.
    fn add(&self, requests: Vec<(f64, u32, Bound<'_, PyBytes>)>) -> PyResult<()> {
        let requests = requests
            .into_iter()
            .map(|(due, must_produce, body)| Request {
                due,
                must_produce,
                body: body.as_bytes().to_vec().into(),
            });
        self.run.add(requests.collect()).map_err(error)
    }

    /// Starts the load: time 0 is now.
    fn start(&self) -> PyResult<()> {
        self.run.start().map_err(error)
    }

    /// Declares that no more requests will be added.
    fn close(&self) {
        self.run.close();
    }

    /// Stops sending, and aborts open requests.
    fn stop(&self) {
        self.run.stop();
    }

    /// Waits up to `seconds` for the end of the load, without the GIL. Returns whether it has
    /// ended.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let limit = Duration::try_from_secs_f64(seconds)
            .map_err(|e| PyValueError::new_err(format!("seconds: {e}")))?;
        py.detach(|| self.run.wait(limit)).map_err(error)
    }

    /// Current numbers of requests by state.
    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        let progress = self.run.progress();
        let all: [(&str, &AtomicU64); 7] = [
            ("added", &progress.added),
            ("sent", &progress.sent),
            ("open", &progress.open),
            ("completed", &progress.completed),
            ("failed", &progress.failed),
            ("events", &progress.events),
            ("bytes", &progress.bytes),
        ];
        for (name, count) in all {
            counts.set_item(name, count.load(Relaxed))?;
        }
        Ok(counts)
    }

    /// Takes the records of all requests as columns. Works once, after the end of the load.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = py.detach(|| self.run.take()).map_err(error)?;
        let taken = PyDict::new(py);
        let f64s = |column: &[f64]| packed(py, column, |value| value.to_ne_bytes());
        let i64s = |column: &[i64]| packed(py, column, |value| value.to_ne_bytes());
        let u32s = |column: &[u32]| packed(py, column, |value| value.to_ne_bytes());
        taken.set_item("due", f64s(&columns.due))?;
        taken.set_item("sent", f64s(&columns.sent))?;
        taken.set_item(
            "resent",
            packed(py, &columns.resent, |value| [u8::from(value)]),
        )?;
        taken.set_item("connected", f64s(&columns.connected))?;
        taken.set_item("ended", f64s(&columns.ended))?;
        taken.set_item(
            "status",
            packed(py, &columns.status, |value| value.to_ne_bytes()),
        )?;
        taken.set_item("prompt_tokens", i64s(&columns.prompt_tokens))?;
        taken.set_item("completion_tokens", i64s(&columns.completion_tokens))?;
        taken.set_item("cached_tokens", i64s(&columns.cached_tokens))?;
        taken.set_item("event_counts", u32s(&columns.event_counts))?;
        taken.set_item("event_times", f64s(&columns.event_times))?;
        taken.set_item("text_events", u32s(&columns.text_events))?;
        taken.set_item("failure", columns.failure)?;
        taken.set_item("detail", columns.detail)?;
        taken.set_item("finish", columns.finish)?;
        taken.set_item("text", columns.text)?;
        taken.set_item("duration", columns.duration)?;
        taken.set_item("cpu_s", columns.cpu_s)?;
        Ok(taken)
    }
}

/// The bytes of a column in native byte order, for `array.array`.
fn packed<'py, T: Copy, const N: usize>(
    py: Python<'py>,
    column: &[T],
    bytes: impl Fn(T) -> [u8; N],
) -> Bound<'py, PyBytes> {
    let packed: Vec<u8> = column.iter().flat_map(|&value| bytes(value)).collect();
    PyBytes::new(py, &packed)
}
