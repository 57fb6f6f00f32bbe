//! Parts of a disk tier whose payload Python moves to and from the memory of an accelerator.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use penstock_kvstore::disk::PAYLOAD_AT;
use penstock_kvstore::{Checksum, Disk, DiskOptions, PartKey, StoreIdentity, Tier, TierError};
use pyo3::buffer::{PyBuffer, ReadOnlyCell};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;

/// Bytes that are copied and summed at once.
const PIECE: usize = 16 << 10;

/// A CRC-64/NVME under way.
#[pyclass]
pub(crate) struct KvChecksum(Checksum);

#[pymethods]
impl KvChecksum {
    #[new]
    fn new() -> Self {
        Self(Checksum::new())
    }

    /// The next bytes: a contiguous buffer of them.
    fn update(&mut self, py: Python<'_>, memory: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = PyBuffer::<u8>::get(memory)?;
        let cells = buffer
            .as_slice(py)
            .ok_or_else(|| PyBufferError::new_err("the memory is not contiguous"))?;
        let mut piece = [0; PIECE];
        for cells in cells.chunks(PIECE) {
            let bytes = &mut piece[..cells.len()];
            bytes
                .iter_mut()
                .zip(cells)
                .for_each(|(byte, cell)| *byte = ReadOnlyCell::get(cell));
            self.0.update(bytes);
        }
        Ok(())
    }

    /// The checksum of all bytes so far.
    fn value(&self) -> u64 {
        self.0.value()
    }
}

/// What `KvParts` is opened with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    path: PathBuf,
    limit_bytes: u64,
    #[serde(default)]
    daily_write_bytes: Option<u64>,
    chunk_blocks: u16,
    identity: StoreIdentity,
}

/// A disk tier that leaves the movement of payloads to the caller.
#[pyclass(frozen)]
pub(crate) struct KvParts(Disk);

/// Digest, blocks, head, first layer and the one after the last.
type Name = ([u8; 32], u16, u16, (u16, u16));

#[pymethods]
impl KvParts {
    /// Where the payload begins in a part's file.
    #[classattr]
    const PAYLOAD_AT: usize = PAYLOAD_AT;

    #[new]
    fn new(py: Python<'_>, options_json: &str) -> PyResult<Self> {
        let options: Options = serde_json::from_str(options_json)
            .map_err(|e| PyValueError::new_err(format!("options of KV parts: {e}")))?;
        let disk = DiskOptions {
            path: options.path,
            limit_bytes: options.limit_bytes,
            daily_write_bytes: options.daily_write_bytes,
            chunk_blocks: options.chunk_blocks,
            quota: None,
        };
        let opened = py.detach(|| Disk::open(disk, options.identity));
        opened
            .map(Self)
            .map_err(|e| PyValueError::new_err(e.to_string()))
    }

    /// Has `take(descriptor)` read a payload of `bytes` from an open file; it returns the CRC-64 of
    /// what it read.
    #[pyo3(signature = (part, bytes, take, /))]
    fn load(&self, py: Python<'_>, part: Name, bytes: usize, take: Py<PyAny>) -> PyResult<()> {
        let (key, take) = (key(part), Callback::new(take));
        let done = py.detach(|| self.0.load_by(&key, bytes, |file| take.call(file)));
        done.map_err(|error| raised(py, &error, take))
    }

    /// Has `give(descriptor)` write a payload of `bytes` to a new file; it returns the CRC-64 of
    /// what it wrote.
    #[pyo3(signature = (part, bytes, give, /))]
    fn store(&self, py: Python<'_>, part: Name, bytes: usize, give: Py<PyAny>) -> PyResult<()> {
        let (key, give) = (key(part), Callback::new(give));
        let done = py.detach(|| {
            let done = self.0.store_by(&key, bytes, |file| give.call(file));
            self.0.tick();
            done
        });
        done.map_err(|error| raised(py, &error, give))
    }
}

fn key((digest, blocks, head, layers): Name) -> PartKey {
    PartKey {
        digest,
        blocks,
        head,
        layers,
    }
}

/// A Python function that moves a payload, and what it raised.
struct Callback {
    function: Py<PyAny>,
    raised: Mutex<Option<PyErr>>,
}

impl Callback {
    fn new(function: Py<PyAny>) -> Self {
        Self {
            function,
            raised: Mutex::default(),
        }
    }

    fn call(&self, file: &File) -> io::Result<u64> {
        Python::attach(|py| {
            let sum = self.function.bind(py).call1((file.as_raw_fd(),));
            sum.and_then(|sum| sum.extract()).map_err(|error| {
                // Its number, so that a full file system is known as one.
                let number = error.value(py).getattr("errno");
                let number = number.and_then(|number| number.extract::<i32>());
                let same = match number {
                    Ok(number) => io::Error::from_raw_os_error(number),
                    Err(_) => io::Error::other(error.to_string()),
                };
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                same
            })
        })
    }
}

/// The error class of `penstock.gds`.
fn raised(py: Python<'_>, error: &TierError, callback: Callback) -> PyErr {
    let name = match error {
        TierError::Missing => "PartMissingError",
        TierError::Damaged(_) => "PartDamagedError",
        TierError::Full(_) => "PartsFullError",
        TierError::Failed(_) => "PartsError",
    };
    let made = py
        .import("penstock.gds.contract")
        .and_then(|module| module.getattr(name)?.call1((error.to_string(),)));
    let made = made.map_or_else(|error| error, PyErr::from_value);
    let cause = callback.raised.into_inner();
    made.set_cause(py, cause.unwrap_or_else(PoisonError::into_inner));
    made
}
