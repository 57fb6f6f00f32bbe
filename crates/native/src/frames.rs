//! Frames between API server and engine: conversion between the dataclasses of
//! `penstock.engine.frontend` and `penstock.core` and their bytes.

use std::sync::Arc;

use penstock_wire::{
    Add, Cancel, EngineFrame, Fatal, Finish, Frame, FrontFrame, Grammar, Hello, KvAction,
    KvCommand, KvOrder, KvOutcome, KvPrefix, KvReply, LogprobRow, Output, Pooler, PoolerOutput,
    Ready, SamplingParams, Shutdown, Stage, Step, StepStats, TierKinds, TierTokens, TokenRequest,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::buffers::items;
use crate::objects::{CORE, alternatives, build, token_array, token_ids};
use crate::plan::{Row, array, codec_error, read_row, write_row};
use crate::vectors::{read_vector, write_vector};

const FRONTEND: &str = "penstock.engine.frontend";

/// Encodes a frame with its length prefix. CodecError for values that the wire does not allow.
#[pyfunction]
#[pyo3(signature = (frame, /))]
pub(crate) fn encode_frame<'py>(frame: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let (py, mut out) = (frame.py(), Vec::new());
    let name = frame.get_type().name()?;
    let encoded = match name.to_str()? {
        "Request" => FrontFrame::Add(read_request(frame)?).encode(&mut out),
        "Cancel" => FrontFrame::Cancel(read_cancel(frame)?).encode(&mut out),
        "Shutdown" => FrontFrame::Shutdown(Shutdown).encode(&mut out),
        "KvCommand" => FrontFrame::Kv(read_command(frame)?).encode(&mut out),
        other => read_engine_frame(other, frame)?.encode(&mut out),
    };
    encoded.map_err(|e| codec_error(py, &e))?;
    Ok(PyBytes::new(py, &out))
}

fn read_engine_frame(name: &str, frame: &Bound<'_, PyAny>) -> PyResult<EngineFrame> {
    Ok(match name {
        "Hello" => EngineFrame::Hello(read_hello(frame)?),
        "Stage" => EngineFrame::Stage(read_stage(frame)?),
        "Ready" => EngineFrame::Ready(read_ready(frame)?),
        "Fatal" => EngineFrame::Fatal(read_fatal(frame)?),
        "Step" => EngineFrame::Step(read_step(frame)?),
        "Tiers" => EngineFrame::Tiers(frame.getattr("report")?.extract()?),
        "KvReply" => EngineFrame::KvReply(read_reply(frame)?),
        other => return Err(PyTypeError::new_err(format!("{other} is not a frame"))),
    })
}

/// Splits received bytes into frames from the engine (`of_engine`) or from the API server.
#[pyclass]
pub(crate) struct FrameReader {
    native: penstock_wire::FrameReader,
    of_engine: bool,
}

#[pymethods]
impl FrameReader {
    #[new]
    #[pyo3(signature = (*, of_engine=false))]
    fn new(of_engine: bool) -> Self {
        Self {
            native: penstock_wire::FrameReader::new(),
            of_engine,
        }
    }

    /// Frames that `data` completes; requests get the arrival time `arrived`. CodecError for
    /// invalid bytes: the connection is then unusable.
    #[pyo3(signature = (data, /, arrived=0.0))]
    fn feed<'py>(
        &mut self,
        py: Python<'py>,
        data: PyBuffer<u8>,
        arrived: f64,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let buffer = self.native.spare();
        let start = buffer.len();
        buffer.resize(start + data.item_count(), 0);
        data.copy_to_slice(py, &mut buffer[start..])?;
        let mut frames = Vec::new();
        if self.of_engine {
            while let Some(frame) = self.next(py)? {
                frames.push(write_engine_frame(py, frame)?);
            }
        } else {
            while let Some(frame) = self.next(py)? {
                frames.push(write_front_frame(py, frame, arrived)?);
            }
        }
        Ok(frames)
    }
}

impl FrameReader {
    fn next<F: Frame>(&mut self, py: Python<'_>) -> PyResult<Option<F>> {
        self.native.next_frame().map_err(|e| codec_error(py, &e))
    }
}

/// Defines the conversions of a struct from and to Python. Its fields have the same names there; a
/// field after the braces has its own conversions.
macro_rules! same_fields {
    ($read:ident $write:ident $struct:ident { $($field:ident)* }
     $($own:ident: $read_own:ident $write_own:ident)*) => {
        fn $read(object: &Bound<'_, PyAny>) -> PyResult<$struct> {
            Ok($struct {
                $($field: object.getattr(stringify!($field))?.extract()?,)*
                $($own: $read_own(&object.getattr(stringify!($own))?)?,)*
            })
        }

        fn $write(py: Python<'_>, value: $struct) -> PyResult<Bound<'_, PyAny>> {
            let fields = PyDict::new(py);
            $(fields.set_item(stringify!($field), value.$field)?;)*
            $(fields.set_item(stringify!($own), $write_own(py, value.$own)?)?;)*
            build(py, FRONTEND, stringify!($struct), &fields)
        }
    };
}

same_fields!(read_hello write_hello Hello { wire_version pid });
same_fields!(read_stage write_stage Stage { name seconds detail });
same_fields!(read_fatal write_fatal Fatal { message });
same_fields!(read_cancel write_cancel Cancel { ids });
same_fields!(read_ready write_ready Ready {
    max_model_len max_num_seqs max_num_batched_tokens max_queue block_size num_blocks kv_bytes
    vocab_size eos_token_ids cache_identity numerics device threads
} kv_tiers: read_kinds write_kinds pooler: read_pooler write_pooler);

fn read_kinds(bits: &Bound<'_, PyAny>) -> PyResult<TierKinds> {
    let unknown = || PyValueError::new_err("kv_tiers has an unknown kind");
    TierKinds::from_bits(bits.extract()?).ok_or_else(unknown)
}

fn write_kinds(py: Python<'_>, kinds: TierKinds) -> PyResult<Bound<'_, PyAny>> {
    Ok(kinds.bits().into_pyobject(py)?.into_any())
}

/// Reads a `penstock.core.Pooler`.
fn read_pooler(pooler: &Bound<'_, PyAny>) -> PyResult<Pooler> {
    let unknown = || PyValueError::new_err("an unknown output of a pooler");
    Ok(Pooler {
        output: PoolerOutput::from_code(pooler.getattr("output")?.extract()?)
            .ok_or_else(unknown)?,
        size: pooler.getattr("size")?.extract()?,
        only: pooler.getattr("only")?.extract()?,
    })
}

fn write_pooler(py: Python<'_>, pooler: Pooler) -> PyResult<Bound<'_, PyAny>> {
    let class = py.import(CORE)?.getattr("Pooler")?;
    class.call1((pooler.output as u8, pooler.size, pooler.only))
}

fn read_request(request: &Bound<'_, PyAny>) -> PyResult<Add> {
    let params = request.getattr("params")?;
    let reads_cache: bool = request.getattr("read_prefix_cache")?.extract()?;
    let sampling = request.getattr("sampling")?;
    let sampling = SamplingParams::decode(sampling.extract()?);
    let grammar = request.getattr("grammar")?;
    let grammar: &[u8] = grammar.extract()?;
    let grammar = (!grammar.is_empty()).then(|| Grammar::decode(grammar).map(Arc::new));
    let token_request = TokenRequest {
        prompt: token_ids(&request.getattr("prompt")?)?,
        resumed: request.getattr("resumed")?.extract()?,
        max_tokens: params.getattr("max_tokens")?.extract()?,
        min_tokens: params.getattr("min_tokens")?.extract()?,
        prompt_logprobs: alternatives(&params, "prompt_logprobs")?,
        ignore_eos: params.getattr("ignore_eos")?.extract()?,
        skip_prefix_cache: !reads_cache,
        pool: request.getattr("pool")?.extract()?,
        expires: request.getattr("expires")?.extract()?,
        grammar: grammar
            .transpose()
            .map_err(|e| codec_error(request.py(), &e))?,
        adapter: request.getattr("adapter")?.extract()?,
        priority: request.getattr("priority")?.extract()?,
        stop_token_ids: params.getattr("stop_token_ids")?.extract()?,
        cache_salt: request.getattr("cache_salt")?.extract()?,
        sampling: sampling.map_err(|e| codec_error(request.py(), &e))?,
    };
    Ok(Add {
        id: request.getattr("id")?.extract()?,
        request: token_request,
    })
}

fn write_request(py: Python<'_>, add: Add, arrived: f64) -> PyResult<Bound<'_, PyAny>> {
    let (request, params, fields) = (add.request, PyDict::new(py), PyDict::new(py));
    let sampling = request.sampling.encode();
    let sampling = sampling.map_err(|e| codec_error(py, &e))?;
    let prompt_logprobs = request.prompt_logprobs.map_or(-1, i16::from);
    params.set_item("max_tokens", request.max_tokens)?;
    params.set_item("min_tokens", request.min_tokens)?;
    params.set_item("prompt_logprobs", prompt_logprobs)?;
    params.set_item("ignore_eos", request.ignore_eos)?;
    params.set_item("stop_token_ids", PyTuple::new(py, request.stop_token_ids)?)?;
    fields.set_item("id", add.id)?;
    fields.set_item("prompt", token_array(py, &request.prompt)?)?;
    fields.set_item("params", build(py, CORE, "GenerationParams", &params)?)?;
    fields.set_item("sampling", PyBytes::new(py, &sampling))?;
    let grammar = request.grammar.as_ref().map(|g| g.encode()).transpose();
    let grammar = grammar
        .map_err(|e| codec_error(py, &e))?
        .unwrap_or_default();
    fields.set_item("needs_history", request.sampling.needs_history())?;
    fields.set_item("arrived", arrived)?;
    fields.set_item("read_prefix_cache", !request.skip_prefix_cache)?;
    fields.set_item("resumed", request.resumed)?;
    fields.set_item("pool", request.pool)?;
    fields.set_item("expires", request.expires)?;
    fields.set_item("cache_salt", PyBytes::new(py, &request.cache_salt))?;
    fields.set_item("grammar", PyBytes::new(py, &grammar))?;
    fields.set_item("adapter", request.adapter)?;
    fields.set_item("priority", request.priority)?;
    build(py, CORE, "Request", &fields)
}

fn read_command(command: &Bound<'_, PyAny>) -> PyResult<KvCommand> {
    let py = command.py();
    let action = KvAction::from_code(command.getattr("action")?.extract()?)
        .ok_or_else(|| PyValueError::new_err("an unknown action"))?;
    let prefix = KvPrefix {
        tokens: token_ids(&command.getattr("tokens")?)?,
        cache_salt: command.getattr("cache_salt")?.extract()?,
    };
    Ok(KvCommand {
        id: command.getattr("id")?.extract()?,
        order: KvOrder::new(action, prefix).map_err(|e| codec_error(py, &e))?,
    })
}

fn write_command(py: Python<'_>, command: KvCommand) -> PyResult<Bound<'_, PyAny>> {
    let (action, prefix) = command.order.parts();
    let action = py
        .import(CORE)?
        .getattr("KvAction")?
        .call1((action as u8,))?;
    let fields = PyDict::new(py);
    fields.set_item("id", command.id)?;
    fields.set_item("action", action)?;
    fields.set_item("tokens", token_array(py, &prefix.tokens)?)?;
    fields.set_item("cache_salt", PyBytes::new(py, &prefix.cache_salt))?;
    build(py, CORE, "KvCommand", &fields)
}

fn read_reply(reply: &Bound<'_, PyAny>) -> PyResult<KvReply> {
    Ok(KvReply {
        id: reply.getattr("id")?.extract()?,
        outcome: KvOutcome::from_code(reply.getattr("outcome")?.extract()?)
            .ok_or_else(|| PyValueError::new_err("an unknown outcome"))?,
        text: reply.getattr("text")?.extract()?,
    })
}

fn write_reply(py: Python<'_>, reply: KvReply) -> PyResult<Bound<'_, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("id", reply.id)?;
    fields.set_item("outcome", reply.outcome as u8)?;
    fields.set_item("text", reply.text)?;
    build(py, CORE, "KvReply", &fields)
}

fn read_step(step: &Bound<'_, PyAny>) -> PyResult<Step> {
    let stats = step.getattr("stats")?;
    Ok(Step {
        stats: StepStats {
            step: step.getattr("step")?.extract()?,
            running: stats.getattr("running")?.extract()?,
            waiting: stats.getattr("waiting")?.extract()?,
            blocks_used: stats.getattr("blocks_used")?.extract()?,
            blocks_total: stats.getattr("blocks_total")?.extract()?,
            preemptions_total: stats.getattr("preemptions")?.extract()?,
            prefix_query_tokens_total: stats.getattr("prefix_query_tokens")?.extract()?,
            prefix_hit_tokens_total: stats.getattr("prefix_hit_tokens")?.extract()?,
            masks_total: stats.getattr("masks")?.extract()?,
            mask_seconds_total: stats.getattr("mask_seconds")?.extract()?,
            mask_wait_seconds_total: stats.getattr("mask_wait_seconds")?.extract()?,
            batch_tokens: step.getattr("batch_tokens")?.extract()?,
            step_ms: step.getattr("step_ms")?.extract()?,
        },
        outputs: read_outputs(&step.getattr("outputs")?)?,
    })
}

/// Reads the outputs of a `StepOutputs`, which stores them as columns.
fn read_outputs(columns: &Bound<'_, PyAny>) -> PyResult<Vec<Output>> {
    let py = columns.py();
    let column = |name: &str| columns.getattr(name);
    let ids: Vec<u64> = items(py, &column("ids")?)?;
    let finish: Vec<u8> = items(py, &column("finish")?)?;
    let stop_tokens: Vec<i32> = items(py, &column("stop_tokens")?)?;
    let cached_tokens: Vec<u32> = items(py, &column("cached_tokens")?)?;
    let queue_us: Vec<u32> = items(py, &column("queue_us")?)?;
    let counts: Vec<u16> = items(py, &column("counts")?)?;
    let tokens = token_ids(&column("tokens")?)?;
    let n = ids.len();
    let lengths = [
        finish.len(),
        stop_tokens.len(),
        cached_tokens.len(),
        queue_us.len(),
    ];
    let sum: usize = counts.iter().map(|&count| usize::from(count)).sum();
    if lengths != [n; 4] || counts.len() != n || tokens.len() != sum {
        return Err(PyValueError::new_err("columns of outputs differ in length"));
    }
    let mut rest = tokens.as_slice();
    let mut outputs = Vec::with_capacity(n);
    for row in 0..n {
        let (own, others) = rest.split_at(counts[row].into());
        rest = others;
        outputs.push(Output {
            id: ids[row],
            finish: Finish::from_code(finish[row])
                .ok_or_else(|| PyValueError::new_err("an unknown finish"))?,
            stop_token: u32::try_from(stop_tokens[row]).ok(),
            cached_tokens: cached_tokens[row],
            queue_us: queue_us[row],
            tokens: own.to_vec(),
            ..Output::default()
        });
    }
    read_extras(columns, &mut outputs)?;
    Ok(outputs)
}

/// Adds the optional values of a `StepOutputs`: dicts whose keys are indices of outputs.
fn read_extras(columns: &Bound<'_, PyAny>, outputs: &mut [Output]) -> PyResult<()> {
    fn each<'py, T: FromPyObjectOwned<'py>>(
        columns: &Bound<'py, PyAny>,
        outputs: &mut [Output],
        name: &str,
        set: impl Fn(&mut Output, T),
    ) -> PyResult<()> {
        for (row, value) in columns.getattr(name)?.cast_into::<PyDict>()? {
            let output = outputs.get_mut(row.extract::<usize>()?);
            let output = output.ok_or_else(|| PyValueError::new_err("an extra without a row"))?;
            set(output, value.extract().map_err(Into::into)?);
        }
        Ok(())
    }
    let rows = |rows: Vec<Row>| -> Vec<LogprobRow> { rows.into_iter().map(read_row).collect() };
    each(columns, outputs, "logprobs", |o, given| {
        o.logprobs = rows(given)
    })?;
    each(columns, outputs, "prompt_logprobs", |o, given| {
        o.prompt_logprobs = rows(given)
    })?;
    each(columns, outputs, "errors", |o, text| o.error = Some(text))?;
    for (row, bytes) in columns.getattr("vectors")?.cast_into::<PyDict>()? {
        let output = outputs.get_mut(row.extract::<usize>()?);
        let output = output.ok_or_else(|| PyValueError::new_err("an extra without a row"))?;
        output.vector = read_vector(bytes.extract()?)?;
    }
    each(columns, outputs, "tier_tokens", |o, (ram, disk, remote)| {
        o.tier_tokens = TierTokens { ram, disk, remote };
    })
}

fn write_step(py: Python<'_>, step: Step) -> PyResult<Bound<'_, PyAny>> {
    let (stats, gauges, fields) = (step.stats, PyDict::new(py), PyDict::new(py));
    gauges.set_item("running", stats.running)?;
    gauges.set_item("waiting", stats.waiting)?;
    gauges.set_item("blocks_used", stats.blocks_used)?;
    gauges.set_item("blocks_total", stats.blocks_total)?;
    gauges.set_item("preemptions", stats.preemptions_total)?;
    gauges.set_item("prefix_query_tokens", stats.prefix_query_tokens_total)?;
    gauges.set_item("prefix_hit_tokens", stats.prefix_hit_tokens_total)?;
    gauges.set_item("masks", stats.masks_total)?;
    gauges.set_item("mask_seconds", stats.mask_seconds_total)?;
    gauges.set_item("mask_wait_seconds", stats.mask_wait_seconds_total)?;
    fields.set_item("step", stats.step)?;
    fields.set_item("stats", build(py, CORE, "EngineStats", &gauges)?)?;
    fields.set_item("batch_tokens", stats.batch_tokens)?;
    fields.set_item("step_ms", stats.step_ms)?;
    fields.set_item("outputs", write_outputs(py, step.outputs)?)?;
    build(py, FRONTEND, "Step", &fields)
}

fn write_outputs(py: Python<'_>, outputs: Vec<Output>) -> PyResult<Bound<'_, PyAny>> {
    let bytes = |of: fn(&Output) -> Vec<u8>| outputs.iter().flat_map(of).collect::<Vec<u8>>();
    let fields = PyDict::new(py);
    for (name, typecode, column) in [
        ("ids", "Q", bytes(|o| o.id.to_ne_bytes().into())),
        ("finish", "B", bytes(|o| vec![o.finish as u8])),
        (
            "stop_tokens",
            "i",
            bytes(|o| stop_token(o).to_ne_bytes().into()),
        ),
        (
            "cached_tokens",
            "I",
            bytes(|o| o.cached_tokens.to_ne_bytes().into()),
        ),
        ("queue_us", "I", bytes(|o| o.queue_us.to_ne_bytes().into())),
        (
            "counts",
            "H",
            bytes(|o| (o.tokens.len() as u16).to_ne_bytes().into()),
        ),
        (
            "tokens",
            "I",
            bytes(|o| o.tokens.iter().flat_map(|t| t.to_ne_bytes()).collect()),
        ),
    ] {
        fields.set_item(name, array(py, typecode, &column)?)?;
    }
    let [logprobs, prompts, errors, tiers, vectors] = std::array::from_fn(|_| PyDict::new(py));
    for (row, output) in outputs.into_iter().enumerate() {
        let rows = |rows: Vec<LogprobRow>| rows.into_iter().map(write_row).collect::<Vec<_>>();
        if !output.logprobs.is_empty() {
            logprobs.set_item(row, rows(output.logprobs))?;
        }
        if !output.prompt_logprobs.is_empty() {
            prompts.set_item(row, rows(output.prompt_logprobs))?;
        }
        if !output.vector.is_empty() {
            vectors.set_item(row, write_vector(py, &output.vector))?;
        }
        if let Some(error) = output.error {
            errors.set_item(row, error)?;
        }
        if output.tier_tokens != TierTokens::default() {
            let TierTokens { ram, disk, remote } = output.tier_tokens;
            let class = py.import(CORE)?.getattr("TierTokens")?;
            tiers.set_item(row, class.call1((ram, disk, remote))?)?;
        }
    }
    fields.set_item("logprobs", logprobs)?;
    fields.set_item("prompt_logprobs", prompts)?;
    fields.set_item("errors", errors)?;
    fields.set_item("tier_tokens", tiers)?;
    fields.set_item("vectors", vectors)?;
    build(py, CORE, "StepOutputs", &fields)
}

/// The stop token, or -1 if there is none.
fn stop_token(output: &Output) -> i32 {
    output.stop_token.map_or(-1, u32::cast_signed)
}

fn write_engine_frame(py: Python<'_>, frame: EngineFrame) -> PyResult<Bound<'_, PyAny>> {
    match frame {
        EngineFrame::Hello(hello) => write_hello(py, hello),
        EngineFrame::Stage(stage) => write_stage(py, stage),
        EngineFrame::Ready(ready) => write_ready(py, ready),
        EngineFrame::Fatal(fatal) => write_fatal(py, fatal),
        EngineFrame::Step(step) => write_step(py, step),
        EngineFrame::Tiers(report) => py.import(FRONTEND)?.getattr("Tiers")?.call1((report,)),
        EngineFrame::KvReply(reply) => write_reply(py, reply),
    }
}

fn write_front_frame(
    py: Python<'_>,
    frame: FrontFrame,
    arrived: f64,
) -> PyResult<Bound<'_, PyAny>> {
    match frame {
        FrontFrame::Add(add) => write_request(py, add, arrived),
        FrontFrame::Cancel(cancel) => write_cancel(py, cancel),
        FrontFrame::Shutdown(Shutdown) => py.import(FRONTEND)?.getattr("Shutdown")?.call0(),
        FrontFrame::Kv(command) => write_command(py, command),
    }
}
