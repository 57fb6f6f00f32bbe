//! Metadata of a GGUF file as Python values.

use std::path::PathBuf;

use penstock_checkpoint::{Array, Checkpoint, Value};
use penstock_tokenizer::TextModel;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Maximum number of items of a metadata array. Longer ones, such as vocabularies, are replaced by
/// their length and type; the tokenizer reads vocabularies itself.
const LONGEST_ARRAY: usize = 64;

/// `{"metadata": {key: value}, "tensors": [(name, dtype, shape)], "ends": [token]}`, where `ends`
/// are the end tokens by name.
#[pyfunction]
pub(crate) fn read_gguf_metadata<'py>(
    py: Python<'py>,
    path: PathBuf,
) -> PyResult<Bound<'py, PyDict>> {
    let checkpoint = Checkpoint::open(&path).map_err(|e| PyValueError::new_err(e.to_string()))?;
    let header = checkpoint
        .gguf()
        .ok_or_else(|| PyValueError::new_err(format!("{} is not a GGUF file", path.display())))?;
    let metadata = PyDict::new(py);
    for (key, value) in header.metadata.iter() {
        metadata.set_item(key, scalar(py, value)?)?;
    }
    let tensors = PyList::empty(py);
    for tensor in &header.tensors {
        tensors.append((&tensor.name, tensor.dtype.to_string(), tensor.shape.clone()))?;
    }
    let out = PyDict::new(py);
    out.set_item("metadata", metadata)?;
    out.set_item("tensors", tensors)?;
    out.set_item("ends", TextModel::end_tokens(&header.metadata))?;
    Ok(out)
}

fn scalar<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Bool(v) => v.into_pyobject(py)?.to_owned().into_any(),
        Value::Int(v) => v.into_pyobject(py)?.into_any(),
        Value::Float(v) => v.into_pyobject(py)?.into_any(),
        Value::String(v) => v.into_pyobject(py)?.into_any(),
        Value::Array(array) if array.len() > LONGEST_ARRAY => {
            let summary = PyDict::new(py);
            summary.set_item("len", array.len())?;
            summary.set_item("type", array.type_name())?;
            summary.into_any()
        }
        Value::Array(Array::Bools(v)) => v.into_pyobject(py)?.into_any(),
        Value::Array(Array::Ints(v)) => v.into_pyobject(py)?.into_any(),
        Value::Array(Array::Floats(v)) => v.into_pyobject(py)?.into_any(),
        Value::Array(Array::Strings(v)) => v.into_pyobject(py)?.into_any(),
    })
}
