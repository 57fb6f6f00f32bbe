//! Step plans, their results and sampling parameters: conversion between Python's columns and
//! bytes.

use penstock_wire::{
    FrameError, LogprobRow, LogprobTable, MaskCost, Pooling, Registration, SamplingParams,
    StepPlan, StepResult, VectorTable,
};
use pyo3::buffer::Element;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyType};

use crate::buffers::items;
use crate::vectors::{read_vector, write_vector};

/// `penstock.core.CodecError` with the message of `error`.
pub(crate) fn codec_error(py: Python<'_>, error: &FrameError) -> PyErr {
    static ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match ERROR.import(py, "penstock.core", "CodecError") {
        Ok(class) => PyErr::from_type(class.clone(), error.to_string()),
        Err(error) => error,
    }
}

/// `array.array(typecode, ...)` from `bytes`, the items in native byte order.
pub(crate) fn array<'py>(
    py: Python<'py>,
    typecode: &str,
    bytes: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    static ARRAY: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    ARRAY
        .import(py, "array", "array")?
        .call1((typecode, PyBytes::new(py, bytes)))
}

pub(crate) fn int_array<'py>(py: Python<'py>, items: &[i32]) -> PyResult<Bound<'py, PyAny>> {
    let bytes: Vec<[u8; 4]> = items.iter().map(|item| item.to_ne_bytes()).collect();
    array(py, "i", bytes.as_flattened())
}

fn column<T: Element>(object: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> PyResult<Vec<T>> {
    items(object.py(), &object.getattr(name)?)
}

/// Reads a `penstock.core.StepPlan`.
pub(crate) fn read_plan(plan: &Bound<'_, PyAny>) -> PyResult<StepPlan> {
    let py = plan.py();
    let registrations = plan.getattr(intern!(py, "registrations"))?;
    Ok(StepPlan {
        step: plan.getattr(intern!(py, "step"))?.extract()?,
        registrations: registrations
            .try_iter()?
            .map(|each| read_registration(&each?))
            .collect::<PyResult<_>>()?,
        grammars: plan.getattr(intern!(py, "grammars"))?.extract()?,
        slots: column(plan, intern!(py, "slots"))?,
        starts: column(plan, intern!(py, "starts"))?,
        lengths: column(plan, intern!(py, "lengths"))?,
        sample: column(plan, intern!(py, "sample"))?,
        drafts: column(plan, intern!(py, "drafts"))?,
        tokens: column(plan, intern!(py, "tokens"))?,
        targets: column(plan, intern!(py, "targets"))?,
        kept: column(plan, intern!(py, "kept"))?,
        added_offsets: column(plan, intern!(py, "added_offsets"))?,
        added: column(plan, intern!(py, "added"))?,
    })
}

fn read_registration(object: &Bound<'_, PyAny>) -> PyResult<Registration> {
    Ok(Registration {
        slot: object.getattr("slot")?.extract()?,
        sampling: object.getattr("sampling")?.extract()?,
        history: items(object.py(), &object.getattr("history")?)?,
        prompt_len: object.getattr("prompt_len")?.extract()?,
        prompt_logprobs: object.getattr("prompt_logprobs")?.extract()?,
        grammar: object.getattr("grammar")?.extract()?,
        adapter: object.getattr("adapter")?.extract()?,
        pooling: Pooling::from_code(object.getattr("pooling")?.extract()?)
            .ok_or_else(|| PyValueError::new_err("an unknown pooling"))?,
    })
}

fn write_plan(py: Python<'_>, plan: StepPlan) -> PyResult<Bound<'_, PyAny>> {
    static PLAN: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let fields = PyDict::new(py);
    let registrations = plan.registrations.into_iter();
    let registrations: Vec<_> = registrations
        .map(|each| write_registration(py, &each))
        .collect::<PyResult<_>>()?;
    let sample: Vec<[u8; 1]> = plan.sample.iter().map(|item| item.to_ne_bytes()).collect();
    fields.set_item("step", plan.step)?;
    let grammars = plan.grammars.iter().map(|each| PyBytes::new(py, each));
    let grammars: Vec<_> = grammars.collect();
    fields.set_item("registrations", registrations)?;
    fields.set_item("grammars", grammars)?;
    fields.set_item("sample", array(py, "b", sample.as_flattened())?)?;
    for (name, column) in [
        ("slots", &plan.slots),
        ("starts", &plan.starts),
        ("lengths", &plan.lengths),
        ("drafts", &plan.drafts),
        ("tokens", &plan.tokens),
        ("targets", &plan.targets),
        ("kept", &plan.kept),
        ("added_offsets", &plan.added_offsets),
        ("added", &plan.added),
    ] {
        fields.set_item(name, int_array(py, column)?)?;
    }
    let class = PLAN.import(py, "penstock.core", "StepPlan")?;
    class.call((), Some(&fields))
}

fn write_registration<'py>(py: Python<'py>, each: &Registration) -> PyResult<Bound<'py, PyAny>> {
    static REGISTRATION: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let fields = PyDict::new(py);
    fields.set_item("slot", each.slot)?;
    fields.set_item("sampling", PyBytes::new(py, &each.sampling))?;
    fields.set_item("history", int_array(py, &each.history)?)?;
    fields.set_item("prompt_len", each.prompt_len)?;
    fields.set_item("prompt_logprobs", each.prompt_logprobs)?;
    fields.set_item("grammar", each.grammar)?;
    fields.set_item("adapter", each.adapter)?;
    fields.set_item("pooling", each.pooling as u8)?;
    let class = REGISTRATION.import(py, "penstock.core", "Registration")?;
    class.call((), Some(&fields))
}

/// Python's `LogprobRow`: log-probability, rank, (token id, log-probability) pairs.
pub(crate) type Row = (f32, u32, Vec<(u32, f32)>);

pub(crate) fn write_row(row: LogprobRow) -> Row {
    (row.logprob, row.rank, row.alternatives)
}

pub(crate) fn read_row((logprob, rank, alternatives): Row) -> LogprobRow {
    LogprobRow {
        logprob,
        rank,
        alternatives,
    }
}

/// Writes a `penstock.core.StepResult`.
pub(crate) fn write_result(py: Python<'_>, result: StepResult) -> PyResult<Bound<'_, PyAny>> {
    static RESULT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let table = |rows: LogprobTable| -> PyResult<Bound<'_, PyDict>> {
        let table = PyDict::new(py);
        for (index, rows) in rows {
            table.set_item(index, rows.into_iter().map(write_row).collect::<Vec<_>>())?;
        }
        Ok(table)
    };
    let fields = PyDict::new(py);
    fields.set_item("counts", int_array(py, &result.counts)?)?;
    fields.set_item("tokens", int_array(py, &result.tokens)?)?;
    fields.set_item("logprobs", table(result.logprobs)?)?;
    fields.set_item("prompt_logprobs", table(result.prompt_logprobs)?)?;
    if !result.vectors.is_empty() {
        let vectors = PyDict::new(py);
        for (index, vector) in result.vectors {
            vectors.set_item(index, write_vector(py, &vector))?;
        }
        fields.set_item("vectors", vectors)?;
    }
    fields.set_item("seconds", result.seconds)?;
    let masks = result.masks;
    fields.set_item("masks", (masks.count, masks.seconds, masks.wait_seconds))?;
    let class = RESULT.import(py, "penstock.core", "StepResult")?;
    class.call((), Some(&fields))
}

fn read_result(result: &Bound<'_, PyAny>) -> PyResult<StepResult> {
    let py = result.py();
    let table = |name: &str| -> PyResult<LogprobTable> {
        let table: Vec<(u32, Vec<Row>)> = result
            .getattr(name)?
            .call_method0("items")?
            .try_iter()?
            .map(|each| each?.extract())
            .collect::<PyResult<_>>()?;
        let mut table: LogprobTable = table
            .into_iter()
            .map(|(index, rows)| (index, rows.into_iter().map(read_row).collect()))
            .collect();
        table.sort_unstable_by_key(|(index, _)| *index);
        Ok(table)
    };
    let mut vectors = VectorTable::new();
    for (index, bytes) in result.getattr("vectors")?.cast_into::<PyDict>()? {
        vectors.push((index.extract()?, read_vector(bytes.extract()?)?));
    }
    vectors.sort_unstable_by_key(|(index, _)| *index);
    Ok(StepResult {
        counts: column(result, intern!(py, "counts"))?,
        tokens: column(result, intern!(py, "tokens"))?,
        logprobs: table("logprobs")?,
        prompt_logprobs: table("prompt_logprobs")?,
        vectors,
        seconds: result.getattr("seconds")?.extract()?,
        masks: {
            let (count, seconds, wait_seconds) = result.getattr("masks")?.extract()?;
            MaskCost {
                count,
                seconds,
                wait_seconds,
            }
        },
    })
}

/// Encodes a `StepPlan`; CodecError if its columns' lengths do not match.
#[pyfunction]
#[pyo3(signature = (plan, /))]
pub(crate) fn encode_plan<'py>(plan: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let (py, mut out) = (plan.py(), Vec::new());
    let encoded = read_plan(plan)?.encode(&mut out);
    encoded.map_err(|e| codec_error(py, &e))?;
    Ok(PyBytes::new(py, &out))
}

/// Decodes a `StepPlan`; CodecError unless `data` is exactly one plan.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(crate) fn decode_plan<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    write_plan(py, StepPlan::decode(data).map_err(|e| codec_error(py, &e))?)
}

/// Encodes a `StepResult`.
#[pyfunction]
#[pyo3(signature = (result, /))]
pub(crate) fn encode_result<'py>(result: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let (py, mut out) = (result.py(), Vec::new());
    let encoded = read_result(result)?.encode(&mut out);
    encoded.map_err(|e| codec_error(py, &e))?;
    Ok(PyBytes::new(py, &out))
}

/// Decodes a `StepResult`; CodecError unless `data` is exactly one result.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(crate) fn decode_result<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    write_result(
        py,
        StepResult::decode(data).map_err(|e| codec_error(py, &e))?,
    )
}

/// Size of the largest step plan in bytes.
#[pyfunction]
#[pyo3(signature = (sequences, tokens, groups, added, length, /))]
pub(crate) fn plan_bytes(
    sequences: usize,
    tokens: usize,
    groups: usize,
    added: usize,
    length: usize,
) -> usize {
    penstock_wire::plan_bytes(sequences, tokens, groups, added, length)
}

/// Size of the largest step result in bytes.
#[pyfunction]
#[pyo3(signature = (sequences, tokens, alternatives, vector, /))]
pub(crate) fn result_bytes(
    sequences: usize,
    tokens: usize,
    alternatives: usize,
    vector: usize,
) -> usize {
    penstock_wire::result_bytes(sequences, tokens, alternatives, vector)
}

/// Encodes sampling parameters as opaque bytes; CodecError names a value out of range.
#[pyfunction]
#[pyo3(signature = (**fields))]
pub(crate) fn encode_sampling<'py>(
    py: Python<'py>,
    fields: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyBytes>> {
    let mut params = SamplingParams::default();
    for (name, value) in fields.into_iter().flatten() {
        match name.extract::<&str>()? {
            "temperature" => params.temperature = value.extract()?,
            "top_k" => params.top_k = value.extract()?,
            "top_p" => params.top_p = value.extract()?,
            "min_p" => params.min_p = value.extract()?,
            "seed" => params.seed = value.extract()?,
            "choice" => params.choice = value.extract()?,
            "logprobs" => params.logprobs = value.extract()?,
            "repetition_penalty" => params.repetition_penalty = value.extract()?,
            "presence_penalty" => params.presence_penalty = value.extract()?,
            "frequency_penalty" => params.frequency_penalty = value.extract()?,
            "bias" => params.bias = value.extract()?,
            "allowed" => params.allowed = value.extract()?,
            "banned" => params.banned = value.extract()?,
            "suppressed" => params.suppressed = value.extract()?,
            "suppressed_until" => params.suppressed_until = value.extract()?,
            other => return Err(PyTypeError::new_err(format!("no parameter {other}"))),
        }
    }
    let bytes = params.encode().map_err(|e| codec_error(py, &e))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Whether the sampler needs the history of a sequence with these encoded parameters.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(crate) fn needs_history(py: Python<'_>, data: &[u8]) -> PyResult<bool> {
    let params = SamplingParams::decode(data).map_err(|e| codec_error(py, &e))?;
    Ok(params.needs_history())
}

/// Decodes the output of `encode_sampling`.
#[pyfunction]
#[pyo3(signature = (data, /))]
pub(crate) fn decode_sampling<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let p = SamplingParams::decode(data).map_err(|e| codec_error(py, &e))?;
    let fields = PyDict::new(py);
    fields.set_item("temperature", p.temperature)?;
    fields.set_item("top_k", p.top_k)?;
    fields.set_item("top_p", p.top_p)?;
    fields.set_item("min_p", p.min_p)?;
    fields.set_item("seed", p.seed)?;
    fields.set_item("choice", p.choice)?;
    fields.set_item("logprobs", p.logprobs)?;
    fields.set_item("repetition_penalty", p.repetition_penalty)?;
    fields.set_item("presence_penalty", p.presence_penalty)?;
    fields.set_item("frequency_penalty", p.frequency_penalty)?;
    fields.set_item("bias", p.bias)?;
    fields.set_item("allowed", p.allowed)?;
    fields.set_item("banned", p.banned)?;
    fields.set_item("suppressed", p.suppressed)?;
    fields.set_item("suppressed_until", p.suppressed_until)?;
    Ok(fields)
}
