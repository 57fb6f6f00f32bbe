//! The engine's KV events.

use std::time::{SystemTime, UNIX_EPOCH};

use penstock_events::{BatchWriter, Endpoint, Publisher, PublisherSettings};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::buffers::ints;
use crate::prefix::digest;

/// Publishes what enters and leaves a pool.
#[pyclass]
pub(crate) struct KvEventPublisher {
    publisher: Publisher,
    batch: BatchWriter,
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
        // subscribers forget the blocks of an engine that was here before
        batch.cleared();
        Ok(Self { publisher, batch })
    }

    /// Ports of events and replay, where the system chose them.
    fn ports(&self) -> (u16, Option<u16>) {
        self.publisher.ports()
    }

    /// The block `digest` of `tokens` behind `parent` is in the pool.
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

    /// The block `digest` has left the pool.
    #[pyo3(signature = (digest, /))]
    fn removed(&mut self, digest: &[u8]) -> PyResult<()> {
        self.batch.removed(name(digest)?);
        Ok(())
    }

    /// Publishes the events since the last call, if there are any. Never waits.
    fn flush(&mut self) {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since_epoch.unwrap_or_default().as_secs_f64();
        if let Some(batch) = self.batch.finish(now) {
            self.publisher.publish(batch);
        }
    }
}

/// A block's name for others: the end of its digest.
fn name(bytes: &[u8]) -> PyResult<u64> {
    let [.., a, b, c, d, e, f, g, h] = digest(bytes, "a digest")?;
    Ok(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
}

/// What stands for a cache salt: the group of the digest. The salt itself is not published.
fn salt(bytes: &[u8]) -> PyResult<Option<String>> {
    let group = penstock_prefix::group(&digest(bytes, "a digest")?);
    let digits: String = group.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((group != penstock_prefix::UNSALTED).then_some(digits))
}
