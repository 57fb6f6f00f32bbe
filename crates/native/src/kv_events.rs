//! The engine's KV events: which blocks have entered or left its pool and tiers.

use std::time::{SystemTime, UNIX_EPOCH};

use penstock_kv_events::{BatchWriter, Chunks, Endpoint, Medium, Publisher, PublisherSettings};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::ints;
use crate::prefix::digest;

/// Publishes additions to and removals from a pool and its tiers.
#[pyclass]
pub(crate) struct KvEventPublisher {
    publisher: Publisher,
    batch: BatchWriter,
    chunks: Chunks,
}

#[pymethods]
impl KvEventPublisher {
    #[new]
    #[pyo3(signature = (endpoint, replay_endpoint, topic, buffer_steps, hwm))]
    fn new(
        endpoint: &str,
        replay_endpoint: Option<&str>,
        topic: String,
        buffer_steps: usize,
        hwm: usize,
    ) -> PyResult<Self> {
        let parse = |text: &str| {
            Endpoint::parse(text).map_err(|error| PyValueError::new_err(error.to_string()))
        };
        let settings = PublisherSettings {
            events: parse(endpoint)?,
            replay: replay_endpoint.map(parse).transpose()?,
            topic,
            buffer_steps,
            hwm,
        };
        let started = Publisher::start(settings);
        let publisher = started.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let mut batch = BatchWriter::default();
        // Makes subscribers discard the blocks of a previous engine.
        batch.cleared();
        let chunks = Chunks::default();
        Ok(Self {
            publisher,
            batch,
            chunks,
        })
    }

    /// Ports of the event socket and the replay socket, also if the system has chosen them.
    fn ports(&self) -> (u16, Option<u16>) {
        self.publisher.ports()
    }

    /// The block `digest`, with `tokens` that follow the block `parent`, was added to the pool.
    #[pyo3(signature = (digest, parent, tokens, /))]
    fn stored(
        &mut self,
        py: Python<'_>,
        digest: &[u8],
        parent: Option<&[u8]>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let tokens: Vec<u32> = ints(py, tokens)?.into_iter().map(|t| t as u32).collect();
        let parent = parent.map(name).transpose()?;
        let salt = salt(digest)?;
        self.batch
            .stored(name(digest)?, parent, &tokens, salt.as_deref());
        Ok(())
    }

    /// The block `digest` was removed from the pool.
    #[pyo3(signature = (digest, /))]
    fn removed(&mut self, digest: &[u8]) -> PyResult<()> {
        self.batch.removed(name(digest)?, Medium::Pool);
        Ok(())
    }

    /// The chunk `key`, made of the blocks `digests` from the pool, was added to the tier with
    /// index `tier` and kind `kind` (`TierKind`).
    #[pyo3(signature = (tier, kind, key, digests, /))]
    fn tier_stored(
        &mut self,
        tier: usize,
        kind: usize,
        key: &[u8],
        digests: Vec<Bound<'_, PyBytes>>,
    ) -> PyResult<()> {
        let unknown = || PyValueError::new_err(format!("{kind} is no kind of tier"));
        let medium = *Medium::ALL.get(kind).ok_or_else(unknown)?;
        let blocks = digests.iter().map(|each| name(each.as_bytes()));
        let blocks = blocks.collect::<PyResult<_>>()?;
        let key = digest(key, "a chunk")?;
        self.chunks
            .stored((tier, medium), key, blocks, &mut self.batch);
        Ok(())
    }

    /// The chunk `key` was removed from the tier; ignored if it was not there.
    #[pyo3(signature = (tier, key, /))]
    fn tier_removed(&mut self, tier: usize, key: &[u8]) -> PyResult<()> {
        let key = digest(key, "a chunk")?;
        self.chunks.removed(tier, key, &mut self.batch);
        Ok(())
    }

    /// Publishes the events since the last call, if there are any. Never blocks.
    fn flush(&mut self) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since_epoch.unwrap_or_default().as_secs_f64();
        if let Some(batch) = self.batch.finish(now) {
            self.publisher.publish(batch);
        }
    }
}

/// A block's published name: the last 8 bytes of its digest, as a number.
fn name(bytes: &[u8]) -> PyResult<u64> {
    let [.., a, b, c, d, e, f, g, h] = digest(bytes, "a digest")?;
    Ok(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}

/// Published instead of a cache salt, which stays private: the digest's salt group in hex digits.
/// `None` without a salt.
fn salt(bytes: &[u8]) -> PyResult<Option<String>> {
    let group = penstock_prefix::group(&digest(bytes, "a digest")?);
    let digits: String = group.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((group != penstock_prefix::UNSALTED).then_some(digits))
}
