//! Digests that name KV blocks by their tokens and all tokens before them.

use penstock_prefix::{Digest, GROUP_BYTES, Group};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::ints;

pub(crate) fn digest(bytes: &[u8], name: &str) -> PyResult<Digest> {
    bytes.try_into().map_err(|_| {
        PyValueError::new_err(format!("{name} has {} bytes; a digest has 32", bytes.len()))
    })
}

pub(crate) fn of_group(bytes: &[u8]) -> PyResult<Group> {
    bytes.try_into().map_err(|_| {
        PyValueError::new_err(format!(
            "a group has {GROUP_BYTES} bytes, not {}",
            bytes.len()
        ))
    })
}

/// Digests of all full units of 16 tokens that follow the unit `parent`; `None` = the prompt's
/// start.
#[pyfunction]
#[pyo3(signature = (identity, parent, tokens, /))]
pub(crate) fn hash_chain<'py>(
    py: Python<'py>,
    identity: &[u8],
    parent: Option<&[u8]>,
    tokens: &Bound<'py, PyAny>,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let identity = digest(identity, "identity")?;
    let parent = parent.map(|p| digest(p, "parent")).transpose()?;
    let tokens: Vec<u32> = ints(py, tokens)?.into_iter().map(|t| t as u32).collect();
    let chain = penstock_prefix::chain(&identity, parent.as_ref(), &tokens);
    Ok(chain.iter().map(|d| PyBytes::new(py, d)).collect())
}

/// Root digest of all hash chains with this adapter and cache salt.
#[pyfunction]
#[pyo3(signature = (identity, adapter, salt, /))]
pub(crate) fn hash_root<'py>(
    py: Python<'py>,
    identity: &[u8],
    adapter: &[u8],
    salt: &[u8],
) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(
        py,
        &penstock_prefix::root(&digest(identity, "identity")?, adapter, salt),
    ))
}
