//! KV transfers and their results: conversion between Python's dataclasses
//! (`penstock.core.transfer`) and bytes.

use penstock_prefix::{Digest, Group};
use penstock_wire::{Fault, Transfer, TransferKind, TransferResult};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyType};

use crate::buffers::{ints, items};
use crate::plan::{array, codec_error, int_array};
use crate::prefix::{digest, of_group};

const TRANSFER: &str = "penstock.core.transfer";

/// Reads a `Transfer`; ValueError for digests or salt groups of the wrong length.
pub(crate) fn read_transfer(transfer: &Bound<'_, PyAny>) -> PyResult<Transfer> {
    let py = transfer.py();
    let field = |name| transfer.getattr(name);
    let code = field(intern!(py, "kind"))?.extract()?;
    let kind = TransferKind::from_code(code)
        .ok_or_else(|| PyValueError::new_err(format!("{code} is no kind of transfer")))?;
    let keys = field(intern!(py, "keys"))?;
    let (keys, group) = names(kind, keys.extract()?)?;
    let ids: Vec<i64> = items(py, &field(intern!(py, "ids"))?)?;
    Ok(Transfer {
        id: field(intern!(py, "id"))?.extract()?,
        kind,
        tier: field(intern!(py, "tier"))?.extract()?,
        blocks: ints(py, &field(intern!(py, "blocks"))?)?,
        slots: ints(py, &field(intern!(py, "slots"))?)?,
        keys,
        counts: ints(py, &field(intern!(py, "counts"))?)?,
        ids: ids.into_iter().map(i64::cast_unsigned).collect(),
        parent: given(field(intern!(py, "parent"))?.extract()?)
            .map(|parent| digest(parent, "parent"))
            .transpose()?,
        group,
    })
}

/// Splits `keys` into the digests of chunks or, for a clear, the salt group.
fn names(kind: TransferKind, keys: &[u8]) -> PyResult<(Vec<Digest>, Option<Group>)> {
    if kind == TransferKind::Clear {
        return Ok((Vec::new(), given(keys).map(of_group).transpose()?));
    }
    match keys.as_chunks::<32>() {
        (keys, []) => Ok((keys.to_vec(), None)),
        _ => {
            let message = format!("{} bytes are not names of 32 bytes", keys.len());
            Err(PyValueError::new_err(message))
        }
    }
}

/// `None` for empty bytes.
fn given(bytes: &[u8]) -> Option<&[u8]> {
    (!bytes.is_empty()).then_some(bytes)
}

fn write_transfer(py: Python<'_>, transfer: Transfer) -> PyResult<Bound<'_, PyAny>> {
    let fields = PyDict::new(py);
    let module = py.import(TRANSFER)?;
    let kind = module
        .getattr("TransferKind")?
        .call1((transfer.kind as u8,))?;
    let keys = transfer.keys.as_flattened();
    let names = transfer.group.as_ref().map_or(keys, |group| &group[..]);
    let ids: Vec<[u8; 8]> = transfer.ids.iter().map(|id| id.to_ne_bytes()).collect();
    fields.set_item("id", transfer.id)?;
    fields.set_item("kind", kind)?;
    fields.set_item("tier", transfer.tier)?;
    fields.set_item("blocks", int_array(py, &transfer.blocks)?)?;
    fields.set_item("slots", int_array(py, &transfer.slots)?)?;
    fields.set_item("keys", PyBytes::new(py, names))?;
    fields.set_item("counts", int_array(py, &transfer.counts)?)?;
    fields.set_item("ids", array(py, "q", ids.as_flattened())?)?;
    fields.set_item(
        "parent",
        PyBytes::new(py, transfer.parent.as_slice().as_flattened()),
    )?;
    module.getattr("Transfer")?.call((), Some(&fields))
}

pub(crate) fn write_result(py: Python<'_>, result: TransferResult) -> PyResult<Bound<'_, PyAny>> {
    static RESULT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static FAULT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let found = PyBytes::new(py, &result.found);
    let (seconds, waited, error) = (result.seconds, result.waited, result.error);
    RESULT.import(py, TRANSFER, "TransferResult")?.call1((
        result.id,
        result.done,
        found,
        result.bytes,
        seconds,
        waited,
        error,
        FAULT
            .import(py, TRANSFER, "Fault")?
            .call1((result.fault as u8,))?,
        PyBytes::new(py, result.left.as_flattened()),
    ))
}

fn read_result(result: &Bound<'_, PyAny>) -> PyResult<TransferResult> {
    let fault = result.getattr("fault")?.extract()?;
    let fault = Fault::from_code(fault)
        .ok_or_else(|| PyValueError::new_err(format!("{fault} is no fault of a tier")))?;
    let left = result.getattr("left")?;
    let (left, _) = names(TransferKind::Remove, left.extract()?)?;
    Ok(TransferResult {
        id: result.getattr("id")?.extract()?,
        done: result.getattr("done")?.extract()?,
        found: result.getattr("found")?.extract()?,
        bytes: result.getattr("bytes")?.extract()?,
        seconds: result.getattr("seconds")?.extract()?,
        waited: result.getattr("waited")?.extract()?,
        error: result.getattr("error")?.extract()?,
        fault,
        left,
    })
}

/// Encodes a `Transfer` that ranks start after they have computed `after` plans.
#[pyfunction]
#[pyo3(signature = (transfer, after, /))]
pub(crate) fn encode_transfer<'py>(
    transfer: &Bound<'py, PyAny>,
    after: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let (py, mut out) = (transfer.py(), Vec::new());
    let encoded = read_transfer(transfer)?.encode(after, &mut out);
    encoded.map_err(|e| codec_error(py, &e))?;
    Ok(PyBytes::new(py, &out))
}

/// Decodes a `Transfer` and its number of preceding plans; CodecError unless `data` is exactly one
/// transfer.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(crate) fn decode_transfer<'py>(
    py: Python<'py>,
    data: &[u8],
) -> PyResult<(Bound<'py, PyAny>, u64)> {
    let (transfer, after) = Transfer::decode(data).map_err(|e| codec_error(py, &e))?;
    Ok((write_transfer(py, transfer)?, after))
}

/// Encodes results as messages of at most `capacity` bytes; a larger result is a message of its
/// own.
#[pyfunction]
#[pyo3(signature = (results, capacity, /))]
pub(crate) fn encode_transfer_results<'py>(
    results: &Bound<'py, PyAny>,
    capacity: usize,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let py = results.py();
    let results: Vec<_> = results
        .try_iter()?
        .map(|each| read_result(&each?))
        .collect::<PyResult<_>>()?;
    let messages = TransferResult::encode_all(&results, capacity);
    let messages = messages.map_err(|e| codec_error(py, &e))?;
    Ok(messages.iter().map(|m| PyBytes::new(py, m)).collect())
}

/// Decodes the results of one message.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(crate) fn decode_transfer_results<'py>(
    py: Python<'py>,
    data: &[u8],
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let results = TransferResult::decode_all(data).map_err(|e| codec_error(py, &e))?;
    results
        .into_iter()
        .map(|each| write_result(py, each))
        .collect()
}

/// Size in bytes of the largest transfer over a pool of `blocks` blocks.
#[pyfunction]
#[pyo3(signature = (blocks, /))]
pub(crate) fn transfer_bytes(blocks: usize) -> usize {
    penstock_wire::transfer_bytes(blocks)
}
