//! The KV mover of one rank: transfers in, answers out, the GIL released while it waits.

use std::time::{Duration, Instant};

use penstock_decoder::Decoder as NativeDecoder;
use penstock_kernels::{BlockRead, BlockWrite, KvLayout, KvType, PoolHandle};
use penstock_kvstore::{Mover, Options, Pool};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Map, Value, json};

use crate::decoder::Decoder;
use crate::transfer::{read_transfer, write_result};

/// How often a wait looks for Python signals.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);

/// A pool of the decoder as the mover sees it.
struct Blocks(PoolHandle);

impl Pool for Blocks {
    type Read = BlockRead;
    type Write = BlockWrite;

    fn read(&self, block: usize) -> Option<BlockRead> {
        self.0.read(block)
    }

    fn write(&self, block: usize) -> Option<BlockWrite> {
        self.0.write(block)
    }

    fn block_bytes(&self) -> usize {
        self.0.layout().block_bytes()
    }
}

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// Carries KV between a decoder's pools and the tiers of its rank.
#[pyclass(frozen)]
pub(crate) struct KvMover {
    native: Mover<Blocks>,
}

#[pymethods]
impl KvMover {
    /// Opens the tiers; ValueError names the one that cannot be opened, and the remedy.
    #[new]
    fn new(py: Python<'_>, decoder: &Bound<'_, Decoder>, options_json: &str) -> PyResult<Self> {
        let decoder = &decoder.get().native;
        let pools = decoder.pools();
        let Some(pool) = pools.first() else {
            return Err(PyValueError::new_err("a KV mover before `allocate`"));
        };
        let options = options(decoder, pool.layout(), options_json)
            .map_err(|e| PyValueError::new_err(format!("KV mover options: {e}")))?;
        let blocks = pools.iter().cloned().map(Blocks).collect();
        let native = py
            .detach(|| Mover::start(&options, blocks))
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        pools.iter().for_each(PoolHandle::populate);
        Ok(Self { native })
    }

    /// Takes a transfer in; returns at once.
    fn submit(&self, transfer: &Bound<'_, PyAny>) -> PyResult<()> {
        self.native.submit(read_transfer(transfer)?);
        Ok(())
    }

    /// Answers since the last call; waits at most `timeout` seconds for the first.
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

    /// Counters since the start and present state, as JSON.
    fn report(&self) -> String {
        self.native.report().to_string()
    }

    /// Finishes the stores under way, for `seconds` at most.
    fn close(&self, py: Python<'_>, seconds: f64) {
        py.detach(|| self.native.close(duration(seconds)));
    }
}

/// Python's options with the part of the model that the decoder's pools hold. `layout` is that of
/// one; they differ in layers.
fn options(decoder: &NativeDecoder, layout: &KvLayout, text: &str) -> serde_json::Result<Options> {
    let mut options: Map<String, Value> = serde_json::from_str(text)?;
    let kv = &decoder.info().kv;
    let dtype = match layout.dtype {
        KvType::Bf16 => "bf16",
        KvType::F32 => "f32",
    };
    let mut identity = json!({
        "layers": kv.all_layers,
        "kv_heads": kv.all_heads,
        "block_tokens": layout.block_size,
        "tile_bytes": layout.tile_bytes(),
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
