//! Python arrays as slices of numbers.

use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;

/// The items of an `array.array` (or any contiguous buffer of `T`).
pub(crate) fn items<T: Element>(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    // The pointer of an empty array may be unaligned, which `PyBuffer` refuses.
    if array.len()? == 0 {
        Ok(Vec::new())
    } else {
        PyBuffer::<T>::get(array)?.to_vec(py)
    }
}

/// Items of an `array.array("i")`.
pub(crate) fn ints(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<Vec<i32>> {
    items(py, array)
}
