//! Conversions that several codecs share: Python dataclasses, arrays of token ids.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::buffers::items;
use crate::plan::int_array;

pub(crate) const CORE: &str = "penstock.core";

/// Constructs `module.class(**fields)`.
pub(crate) fn build<'py>(
    py: Python<'py>,
    module: &str,
    class: &str,
    fields: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    py.import(module)?.getattr(class)?.call((), Some(fields))
}

/// Token ids from an `array.array`.
pub(crate) fn token_ids(array: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let py = array.py();
    items::<u32>(py, array).or_else(|_| {
        let ids: Vec<i32> = items(py, array)?;
        Ok(ids.into_iter().map(i32::cast_unsigned).collect())
    })
}

pub(crate) fn token_array<'py>(py: Python<'py>, ids: &[u32]) -> PyResult<Bound<'py, PyAny>> {
    let ids: Vec<i32> = ids.iter().map(|id| id.cast_signed()).collect();
    int_array(py, &ids)
}

/// Reads a number of log-probability alternatives; Python uses -1 for no log-probabilities.
pub(crate) fn alternatives(object: &Bound<'_, PyAny>, field: &str) -> PyResult<Option<u8>> {
    let number: i64 = object.getattr(field)?.extract()?;
    Ok((number >= 0).then(|| u8::try_from(number).unwrap_or(u8::MAX)))
}
