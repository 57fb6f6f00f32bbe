//! KV parts (one head of one chunk each) of a disk tier whose payload Python moves to accelerator
//! memory.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

use penstock_kvstore::{Mover, PartKey, Pool, TierError};
use pyo3::prelude::*;

/// Name of a KV part: the chunk's digest and number of blocks, the head, the first layer and the
/// layer after the last.
pub(crate) type Name = ([u8; 32], u16, u16, (u16, u16));

/// Loads a part of `bytes` bytes of payload, which `take(descriptor)` reads from an open file.
pub(crate) fn load_by<P: Pool>(
    py: Python<'_>,
    mover: &Mover<P>,
    tier: usize,
    (part, bytes): (Name, usize),
    take: Py<PyAny>,
) -> PyResult<()> {
    let (key, take) = (key(part), Callback::new(take));
    let done = py.detach(|| mover.load_by(tier, &key, bytes, &mut |file| take.call(file)));
    done.map_err(|error| raised(py, &error, take))
}

fn key((digest, blocks, head, layers): Name) -> PartKey {
    PartKey {
        digest,
        blocks,
        head,
        layers,
    }
}

/// A Python callback that moves a payload, and the exception that it raised, if any.
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
                let same = io::Error::other(error.to_string());
                *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                same
            })
        })
    }
}

/// Converts an error to the error class of `penstock.kv.gds`.
fn raised(py: Python<'_>, error: &TierError, callback: Callback) -> PyErr {
    let name = match error {
        TierError::Missing => "PartMissingError",
        TierError::Damaged(_) => "PartDamagedError",
        TierError::Full(_) | TierError::Failed(_) => "PartsError",
    };
    let made = py
        .import("penstock.kv.gds.contract")
        .and_then(|module| module.getattr(name)?.call1((error.to_string(),)));
    let made = made.map_or_else(|error| error, PyErr::from_value);
    let cause = callback.raised.into_inner();
    made.set_cause(py, cause.unwrap_or_else(PoisonError::into_inner));
    made
}
