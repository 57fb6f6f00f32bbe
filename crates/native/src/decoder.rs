//! The decoder: plans in, results out, the GIL released while it works.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_decoder::{
    Carried, Decoder as Native, DecoderError, DecoderSpec, Options, Registration, Shard,
    StepOutput, StepPlan, Wiring, join,
};
use penstock_kernels::{Logprob, Sampling};
use pyo3::buffer::Element;
use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::buffers::items;

/// How often a wait looks for Python signals.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

fn error(e: DecoderError) -> PyErr {
    match e {
        DecoderError::Lost(_) => PyConnectionError::new_err(e.to_string()),
        DecoderError::Failed(_) => PyRuntimeError::new_err(e.to_string()),
        _ => PyValueError::new_err(e.to_string()),
    }
}

/// A loaded model.
#[pyclass(frozen)]
pub(crate) struct Decoder {
    pub(crate) native: Native,
    /// The ends of pipes that the caller carries.
    carried: Mutex<Carried>,
}

#[pymethods]
impl Decoder {
    /// With `rank`, a pair of JSON texts (`Shard`, `Wiring`), one rank's part of the model.
    #[new]
    #[pyo3(signature = (spec_json, names_json, paths, options_json, rank=None))]
    fn new(
        py: Python<'_>,
        spec_json: &str,
        names_json: &str,
        paths: Vec<String>,
        options_json: &str,
        rank: Option<(String, String)>,
    ) -> PyResult<Self> {
        let [path] = paths.as_slice() else {
            return Err(PyValueError::new_err(format!(
                "a checkpoint is one file or directory, not {}",
                paths.len()
            )));
        };
        let options = Options::parse(options_json).map_err(error)?;
        let path = Path::new(path);
        let (native, carried) = py
            .detach(|| match rank {
                None => {
                    let native = Native::load(spec_json, names_json, path, &options)?;
                    Ok((native, Carried::default()))
                }
                Some((shard, wiring)) => {
                    let spec = DecoderSpec::parse(spec_json)?;
                    let shard = Shard::parse(&shard, &spec)?;
                    let wiring: Wiring = serde_json::from_str(&wiring)
                        .map_err(|e| DecoderError::Options(format!("wiring: {e}")))?;
                    let (collectives, carried) = join(&wiring)?;
                    let collectives = Box::new(collectives);
                    let native =
                        Native::load_shard(spec, names_json, path, &options, shard, collectives)?;
                    Ok((native, carried))
                }
            })
            .map_err(error)?;
        let carried = Mutex::new(carried);
        Ok(Self { native, carried })
    }

    #[getter]
    fn numerics(&self) -> &str {
        &self.native.info().numerics
    }

    #[getter]
    fn isa(&self) -> &'static str {
        self.native.info().isa.name()
    }

    #[getter]
    fn threads(&self) -> usize {
        self.native.info().threads
    }

    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.native.info().fingerprint)
    }

    #[getter]
    fn weights_bytes(&self) -> usize {
        self.native.info().weights_bytes
    }

    /// Start-up stages: (name, seconds, detail).
    #[getter]
    fn stages(&self) -> Vec<(String, f64, String)> {
        self.native.info().stages.clone()
    }

    /// Hands the stage what the one before left (f32 in native order), for the next step that has
    /// none yet.
    fn put(&self, carried: &[u8]) -> PyResult<()> {
        let (numbers, rest) = carried.as_chunks::<4>();
        if !rest.is_empty() {
            let message = format!("{} bytes are not numbers of 4 bytes", carried.len());
            return Err(PyValueError::new_err(message));
        }
        let numbers = numbers.iter().map(|b| f32::from_ne_bytes(*b)).collect();
        let ends = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        match &ends.before {
            Some(before) if before.send(numbers).is_ok() => Ok(()),
            Some(_) => Err(PyRuntimeError::new_err("the decoder has ended")),
            None => Err(PyValueError::new_err("this rank's `before` is not carried")),
        }
    }

    /// What the next step left for the stage after; `TimeoutError` after `timeout` seconds.
    fn fetch<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Bound<'py, PyBytes>> {
        let limit = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::MAX);
        let numbers = py.detach(|| {
            let ends = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
            ends.after.as_ref().map(|after| after.recv_timeout(limit))
        });
        match numbers {
            Some(Ok(numbers)) => {
                let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
                Ok(PyBytes::new(py, &bytes))
            }
            Some(Err(_)) => Err(PyTimeoutError::new_err("the step has left nothing yet")),
            None => Err(PyValueError::new_err("this rank's `after` is not carried")),
        }
    }

    /// Starts a step; returns at once.
    fn submit(&self, py: Python<'_>, plan: &Bound<'_, PyAny>) -> PyResult<Ticket> {
        let plan = read_plan(py, plan)?;
        Ok(Ticket {
            native: self.native.submit(plan),
        })
    }
}

/// A step under way.
#[pyclass(frozen)]
pub(crate) struct Ticket {
    native: penstock_decoder::Ticket,
}

#[pymethods]
impl Ticket {
    /// The step's result; waits at most `timeout` seconds (for ever by default), then raises
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

fn column<T: Element>(
    py: Python<'_>,
    plan: &Bound<'_, PyAny>,
    name: &Bound<'_, pyo3::types::PyString>,
) -> PyResult<Vec<T>> {
    items(py, &plan.getattr(name)?)
}

fn read_plan(py: Python<'_>, plan: &Bound<'_, PyAny>) -> PyResult<StepPlan> {
    let registrations = plan.getattr(intern!(py, "registrations"))?;
    Ok(StepPlan {
        registrations: registrations
            .try_iter()?
            .map(|r| read_registration(&r?))
            .collect::<PyResult<_>>()?,
        slots: column(py, plan, intern!(py, "slots"))?,
        starts: column(py, plan, intern!(py, "starts"))?,
        lengths: column(py, plan, intern!(py, "lengths"))?,
        tokens: column(py, plan, intern!(py, "tokens"))?,
        targets: column(py, plan, intern!(py, "targets"))?,
        sample: column(py, plan, intern!(py, "sample"))?,
        blocks: column(py, plan, intern!(py, "blocks"))?,
        block_offsets: column(py, plan, intern!(py, "block_offsets"))?,
    })
}

fn read_registration(params: &Bound<'_, PyAny>) -> PyResult<Registration> {
    let alternatives = |name: &str| -> PyResult<Option<usize>> {
        Ok(usize::try_from(params.getattr(name)?.extract::<i64>()?).ok())
    };
    Ok(Registration {
        slot: params.getattr("slot")?.extract()?,
        sampling: Sampling {
            temperature: params.getattr("temperature")?.extract()?,
            top_k: params.getattr("top_k")?.extract::<i64>()?.max(0) as usize,
            top_p: params.getattr("top_p")?.extract()?,
            seed: params.getattr("seed")?.extract()?,
            choice: params.getattr("choice")?.extract()?,
        },
        logprobs: alternatives("logprobs")?,
        prompt_logprobs: alternatives("prompt_logprobs")?,
    })
}

fn write_result(py: Python<'_>, output: StepOutput) -> PyResult<Bound<'_, PyAny>> {
    static RESULT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (logprobs, prompt_logprobs) = (PyDict::new(py), PyDict::new(py));
    for (index, row) in output.logprobs {
        logprobs.set_item(index, vec![logprob_row(row)])?;
    }
    for (index, rows) in output.prompt_logprobs {
        prompt_logprobs.set_item(index, rows.into_iter().map(logprob_row).collect::<Vec<_>>())?;
    }
    let columns = (
        int_array(py, &output.counts)?,
        int_array(py, &output.tokens)?,
        logprobs,
        prompt_logprobs,
    );
    RESULT
        .import(py, "penstock.core", "StepResult")?
        .call1(columns)
}

fn logprob_row(row: Logprob) -> (f32, u32, Vec<(u32, f32)>) {
    (row.logprob, row.rank, row.top)
}

/// `array.array("i", ...)`.
fn int_array<'py>(py: Python<'py>, items: &[i32]) -> PyResult<Bound<'py, PyAny>> {
    static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let bytes: Vec<u8> = items.iter().flat_map(|i| i.to_ne_bytes()).collect();
    ARRAY
        .import(py, "array", "array")?
        .call1(("i", PyBytes::new(py, &bytes)))
}
