//! Vectors of pooled requests, as little-endian f32 bytes in Python.

use penstock_tokenizer::shortened;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub(crate) fn write_vector<'py>(py: Python<'py>, vector: &[f32]) -> Bound<'py, PyBytes> {
    let bytes: Vec<[u8; 4]> = vector.iter().map(|x| x.to_le_bytes()).collect();
    PyBytes::new(py, bytes.as_flattened())
}

pub(crate) fn read_vector(bytes: &[u8]) -> PyResult<Vec<f32>> {
    match bytes.as_chunks() {
        (numbers, []) => Ok(numbers.iter().map(|x| f32::from_le_bytes(*x)).collect()),
        _ => Err(PyValueError::new_err(
            "a vector has 4 bytes for each number",
        )),
    }
}

/// Truncates a vector to `dimensions` numbers; `normalize` scales it to length 1.
#[pyfunction]
#[pyo3(signature = (vector, dimensions, normalize, /))]
pub(crate) fn trimmed_vector<'py>(
    py: Python<'py>,
    vector: &[u8],
    dimensions: Option<usize>,
    normalize: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let vector = penstock_api_types::trimmed(read_vector(vector)?, dimensions, normalize);
    Ok(write_vector(py, &vector))
}

/// Cosine similarity of two vectors.
#[pyfunction]
#[pyo3(signature = (a, b, /))]
pub(crate) fn cosine(a: &[u8], b: &[u8]) -> PyResult<f32> {
    Ok(penstock_api_types::cosine(
        &read_vector(a)?,
        &read_vector(b)?,
    ))
}

/// Truncates `ids` to `most` tokens: the tokens `bare` of a text lose tokens at one end, the
/// special tokens around them are kept.
#[pyfunction]
#[pyo3(signature = (ids, bare, most, keep_last, /))]
pub(crate) fn shortened_ids(
    ids: Vec<u32>,
    bare: Vec<u32>,
    most: usize,
    keep_last: bool,
) -> Vec<u32> {
    shortened(&ids, &bare, most, keep_last)
}
