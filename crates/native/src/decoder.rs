//! The decoder (`penstock_decoder`): load, KV allocation and steps. Long calls release the GIL.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use penstock_checkpoint::ReadCount as Count;
use penstock_decoder::{
    Alone, Carried, Collectives, Decoder as Native, DecoderError, DecoderSpec, Options, Shard,
    Wiring, join,
};
use penstock_kernels::AttentionMask;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::step::{self, StepFuture, error};

/// A KV group: its layers, bytes per block, attention window in tokens, and whether the window is a
/// chunk (does not slide).
type Group = (Vec<usize>, usize, Option<usize>, bool);

/// Progress of a decoder's load, readable from another thread.
#[pyclass(frozen)]
#[derive(Default)]
pub(crate) struct ReadCount {
    count: Count,
}

#[pymethods]
impl ReadCount {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Bytes to read; 0 while unknown.
    #[getter]
    fn total(&self) -> u64 {
        self.count.total()
    }

    /// Bytes read so far.
    #[getter]
    fn read(&self) -> u64 {
        self.count.read()
    }
}

/// A loaded model.
#[pyclass(frozen)]
pub(crate) struct Decoder {
    pub(crate) native: Native,
    /// Channel ends of pipes to other stages whose data the caller transports (`put`, `fetch`).
    carried: Mutex<Carried>,
}

#[pymethods]
impl Decoder {
    /// Loads a model. With `rank`, a pair of JSON texts (`Shard`, `Wiring`), loads the shard of one
    /// rank. `count` reports progress during the load.
    #[new]
    #[pyo3(signature = (spec_json, weights_json, paths, options_json, rank=None, count=None))]
    fn new(
        py: Python<'_>,
        spec_json: &str,
        weights_json: &str,
        paths: Vec<String>,
        options_json: &str,
        rank: Option<(String, String)>,
        count: Option<Py<ReadCount>>,
    ) -> PyResult<Self> {
        let [path] = paths.as_slice() else {
            return Err(PyValueError::new_err(format!(
                "a checkpoint is one file or directory, not {}",
                paths.len()
            )));
        };
        let options = Options::parse(options_json).map_err(error)?;
        let path = Path::new(path);
        let unwatched = Count::default();
        let count = count
            .as_ref()
            .map_or(&unwatched, |count| &count.get().count);
        let load = || {
            let spec = DecoderSpec::parse(spec_json)?;
            let (shard, collectives, carried) = place(rank, &spec)?;
            let native = Native::load_shard(
                spec,
                weights_json,
                path,
                &options,
                shard,
                collectives,
                count,
            )?;
            Ok((native, carried))
        };
        let (native, carried) = py.detach(load).map_err(error)?;
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

    /// Number of expert weight reads, summed over all layers and steps.
    #[getter]
    fn experts_read(&self) -> u64 {
        self.native.experts_read()
    }

    /// Start-up stages: (name, seconds, detail).
    #[getter]
    fn stages(&self) -> Vec<(String, f64, String)> {
        self.native.stages()
    }

    /// `(block_size, [(layers, block_bytes, window, chunked), ...])`: the contents of a block of
    /// each KV group on this rank. `window` is `None` for a group without a window; a chunk is a
    /// window that does not slide.
    fn kv_spec(&self) -> (usize, Vec<Group>) {
        let spec = self.native.kv_spec();
        let groups = spec.groups.iter();
        let groups = groups.map(|g| {
            let (window, chunked) = match g.seen {
                AttentionMask::All => (None, false),
                AttentionMask::Window(window) => (Some(window), false),
                AttentionMask::Chunk(chunk) => (Some(chunk), true),
            };
            (g.layers.clone(), g.block_bytes, window, chunked)
        });
        (spec.block_size, groups.collect())
    }

    /// Creates the KV pools with `blocks[group]` blocks each. Must precede the first step.
    fn allocate(&self, py: Python<'_>, blocks: Vec<usize>) -> PyResult<()> {
        py.detach(|| self.native.allocate(&blocks)).map_err(error)
    }

    /// Passes the previous stage's output (f32 in native byte order) to the next step that has no
    /// input yet.
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

    /// This stage's output of the next step, as input for the following stage; `TimeoutError` after
    /// `timeout` seconds.
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

    /// Starts a step without waiting.
    fn submit(&self, plan: &Bound<'_, PyAny>) -> PyResult<StepFuture> {
        step::submit(&self.native, plan)
    }
}

/// A rank's shard, and its connections to other ranks.
fn place(
    rank: Option<(String, String)>,
    spec: &DecoderSpec,
) -> Result<(Shard, Box<dyn Collectives>, Carried), DecoderError> {
    let Some((shard, wiring)) = rank else {
        return Ok((Shard::whole(spec), Box::new(Alone), Carried::default()));
    };
    let shard = Shard::parse(&shard, spec)?;
    let wiring: Wiring =
        serde_json::from_str(&wiring).map_err(|e| DecoderError::Options(format!("wiring: {e}")))?;
    let (collectives, carried) = join(&wiring)?;
    Ok((shard, Box::new(collectives), carried))
}
