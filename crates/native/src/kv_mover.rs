//! The KV mover of one rank, which copies blocks between its pools and its tiers. Waits release the
//! GIL.

use std::time::{Duration, Instant};

use penstock_decoder::Decoder as NativeDecoder;
use penstock_kernels::{KvType, PoolHandle};
use penstock_kvstore::{Mover, Options};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Map, Value, json};

use crate::decoder::Decoder;
use crate::kv_blocks::Blocks;
use crate::kv_parts::{Name, load_by};
use crate::transfer::{read_transfer, write_result};

/// Interval at which a wait checks for Python signals.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// Moves KV between a rank's pools and its tiers.
#[pyclass(frozen)]
pub(crate) struct KvMover {
    native: Mover<Blocks>,
}

#[pymethods]
impl KvMover {
    /// A mover over the decoder's pools. Opens the tiers; ValueError names the tier that cannot be
    /// opened, and the remedy.
    #[new]
    fn new(py: Python<'_>, decoder: &Bound<'_, Decoder>, options_json: &str) -> PyResult<Self> {
        let decoder = &decoder.get().native;
        let pools = decoder.pools();
        if pools.is_empty() {
            return Err(PyValueError::new_err("a KV mover before `allocate`"));
        }
        let options = options(decoder, options_json).map_err(refused)?;
        let blocks = pools.iter().cloned().map(Blocks::Decoder).collect();
        let started = Self::start(py, &options, blocks)?;
        pools.iter().for_each(PoolHandle::populate);
        Ok(started)
    }

    /// A mover over memory owned by Python: a buffer and its number of blocks for each KV group.
    #[staticmethod]
    #[pyo3(signature = (pools, options_json, /))]
    fn over(
        py: Python<'_>,
        pools: Vec<(Bound<'_, PyAny>, usize)>,
        options_json: &str,
    ) -> PyResult<Self> {
        let options: Options = serde_json::from_str(options_json).map_err(refused)?;
        let sizes = options.block_bytes();
        if sizes.len() != pools.len() {
            let (groups, pools) = (sizes.len(), pools.len());
            let wrong = format!("{pools} pools of {groups} KV groups");
            return Err(PyValueError::new_err(wrong));
        }
        let over = |((memory, blocks), bytes): (&(_, _), _)| Blocks::over(memory, *blocks, bytes);
        let blocks = pools.iter().zip(sizes).map(over);
        let blocks = blocks.collect::<PyResult<_>>()?;
        Self::start(py, &options, blocks)
    }

    /// Queues a transfer without waiting.
    fn submit(&self, transfer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.native.submit(read_transfer(transfer)?);
        Ok(())
    }

    /// Results since the last call; waits up to `timeout` seconds for the first one.
    #[pyo3(signature = (timeout=0.0))]
    fn take<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (began, limit) = (Instant::now(), duration(timeout));
        loop {
            let left = limit.saturating_sub(began.elapsed()).min(SIGNAL_CHECK);
            let moved = py.detach(|| self.native.take(left));
            if !moved.is_empty() || began.elapsed() >= limit {
                return moved.into_iter().map(|m| write_result(py, m)).collect();
            }
            py.check_signals()?;
        }
    }

    /// Loads a KV part (one head of one chunk) from a disk tier. `take(descriptor)` reads its
    /// `bytes` bytes of payload from offset `KV_PAYLOAD_AT` of an open file and returns their
    /// CRC-64/NVME.
    #[pyo3(signature = (tier, part, bytes, take, /))]
    fn load_by(
        &self,
        py: Python<'_>,
        tier: usize,
        part: Name,
        bytes: usize,
        take: Py<PyAny>,
    ) -> PyResult<()> {
        load_by(py, &self.native, tier, (part, bytes), take)
    }

    /// Counters since the start, and the current state of the tiers, as JSON.
    fn report(&self) -> String {
        self.native.report().to_string()
    }

    /// Finishes the stores in flight. Waits for at most `seconds`.
    fn close(&self, py: Python<'_>, seconds: f64) {
        py.detach(|| self.native.close(duration(seconds)));
    }
}

impl KvMover {
    fn start(py: Python<'_>, options: &Options, blocks: Vec<Blocks>) -> PyResult<Self> {
        let native = py
            .detach(|| Mover::start(options, blocks))
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(Self { native })
    }
}

fn refused(error: serde_json::Error) -> PyErr {
    PyValueError::new_err(format!("KV mover options: {error}"))
}

/// The options from Python, extended by the layers and heads that the decoder holds.
fn options(decoder: &NativeDecoder, text: &str) -> serde_json::Result<Options> {
    let mut options: Map<String, Value> = serde_json::from_str(text)?;
    let kv = &decoder.info().kv;
    let dtype = match kv.layout.dtype {
        KvType::Bf16 => "bf16",
        KvType::F32 => "f32",
    };
    let mut identity = json!({
        "layers": kv.all_layers,
        "kv_heads": kv.all_heads,
        "block_tokens": kv.layout.block_size,
        "tile_bytes": kv.layout.tile_bytes(),
        "dtype": dtype,
    });
    if let Some(cache) = options.remove("cache") {
        identity["cache"] = cache;
    }
    options.insert("identity".into(), identity);
    options.insert("heads".into(), kv.heads.clone().collect());
    let layers = kv.layers.iter().map(|own| json!([own.start, own.end]));
    options.insert("layers".into(), layers.collect());
    serde_json::from_value(options.into())
}
