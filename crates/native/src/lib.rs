//! `penstock._native`: Python bindings of the Rust crates. Conversions only, no logic.

mod buffers;
mod comm;
mod decoder;
mod directory;
mod formats;
mod frames;
#[cfg(feature = "gateway")]
mod gateway;
#[cfg(feature = "gateway")]
mod kubernetes;
mod kv_blocks;
mod kv_disk;
mod kv_events;
mod kv_mover;
mod kv_parts;
#[cfg(feature = "lab")]
mod loadgen;
mod masks;
mod objects;
mod pacing;
mod plan;
mod prefix;
#[cfg(feature = "lab")]
mod simengine;
mod step;
mod text;
mod tier_index;
mod transfer;
mod vectors;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Runs the API server with its configuration (JSON) until it is drained; returns the process's
/// exit code.
#[pyfunction]
fn front_door(py: Python<'_>, config_json: String) -> PyResult<i32> {
    py.detach(|| penstock_server::run(&config_json))
        .map_err(|e| PyRuntimeError::new_err(e.to_string()))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("HEAD_ROWS", penstock_decoder::HEAD_ROWS)?;
    module.add("KV_PAYLOAD_AT", penstock_kvstore::disk::PAYLOAD_AT)?;
    module.add_class::<decoder::Decoder>()?;
    module.add_class::<directory::PrivateDirectory>()?;
    module.add_class::<decoder::ReadCount>()?;
    module.add_class::<step::StepFuture>()?;
    module.add_class::<frames::FrameReader>()?;
    module.add_class::<kv_events::KvEventPublisher>()?;
    module.add_class::<kv_mover::KvMover>()?;
    module.add_class::<masks::GrammarMasks>()?;
    module.add_class::<masks::SequenceMasks>()?;
    module.add_class::<pacing::PromptBudget>()?;
    module.add_class::<text::Tokenizer>()?;
    module.add_class::<text::Grammar>()?;
    module.add_class::<tier_index::TierIndex>()?;
    module.add_class::<comm::AbortHandle>()?;
    module.add_class::<comm::RingReader>()?;
    module.add_class::<comm::RingWriter>()?;
    module.add_class::<comm::Star>()?;
    module.add_class::<comm::Stream>()?;
    module.add_class::<comm::StreamListener>()?;
    module.add_function(wrap_pyfunction!(comm::create_group, module)?)?;
    module.add_function(wrap_pyfunction!(comm::create_ring, module)?)?;
    module.add_function(wrap_pyfunction!(prefix::hash_chain, module)?)?;
    module.add_function(wrap_pyfunction!(prefix::hash_root, module)?)?;
    module.add_function(wrap_pyfunction!(formats::read_gguf_metadata, module)?)?;
    module.add_function(wrap_pyfunction!(kv_disk::kv_collect, module)?)?;
    module.add_function(wrap_pyfunction!(kv_disk::kv_inventory, module)?)?;
    module.add_function(wrap_pyfunction!(kv_disk::kv_verify, module)?)?;
    module.add("WIRE_VERSION", penstock_wire::WIRE_VERSION)?;
    module.add_function(wrap_pyfunction!(frames::encode_frame, module)?)?;
    module.add_function(wrap_pyfunction!(text::run_template, module)?)?;
    module.add_function(wrap_pyfunction!(text::try_grammar, module)?)?;
    module.add_function(wrap_pyfunction!(plan::decode_plan, module)?)?;
    module.add_function(wrap_pyfunction!(plan::decode_result, module)?)?;
    module.add_function(wrap_pyfunction!(plan::decode_sampling, module)?)?;
    module.add_function(wrap_pyfunction!(plan::encode_plan, module)?)?;
    module.add_function(wrap_pyfunction!(plan::encode_result, module)?)?;
    module.add_function(wrap_pyfunction!(plan::encode_sampling, module)?)?;
    module.add_function(wrap_pyfunction!(plan::needs_history, module)?)?;
    module.add_function(wrap_pyfunction!(plan::plan_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(plan::result_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(vectors::cosine, module)?)?;
    module.add_function(wrap_pyfunction!(vectors::shortened_ids, module)?)?;
    module.add_function(wrap_pyfunction!(vectors::trimmed_vector, module)?)?;
    module.add_function(wrap_pyfunction!(transfer::decode_transfer, module)?)?;
    module.add_function(wrap_pyfunction!(transfer::decode_transfer_results, module)?)?;
    module.add_function(wrap_pyfunction!(transfer::encode_transfer, module)?)?;
    module.add_function(wrap_pyfunction!(transfer::encode_transfer_results, module)?)?;
    module.add_function(wrap_pyfunction!(transfer::transfer_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(front_door, module)?)?;
    add_features(module)
}

/// Adds what a build may leave out.
fn add_features(module: &Bound<'_, PyModule>) -> PyResult<()> {
    #[cfg(feature = "gateway")]
    {
        module.add_class::<kubernetes::KubernetesClient>()?;
        module.add_function(wrap_pyfunction!(gateway::gateway, module)?)?;
        module.add_function(wrap_pyfunction!(gateway::gateway_complaint, module)?)?;
    }
    #[cfg(feature = "lab")]
    {
        module.add_class::<loadgen::LoadRun>()?;
        module.add_function(wrap_pyfunction!(simengine::fleet_replay, module)?)?;
        module.add_function(wrap_pyfunction!(simengine::sim_replay, module)?)?;
        module.add_function(wrap_pyfunction!(simengine::sim_serve, module)?)?;
        module.add_function(wrap_pyfunction!(simengine::sim_wire, module)?)?;
    }
    #[cfg(not(all(feature = "gateway", feature = "lab")))]
    module.add_function(wrap_pyfunction!(missing, module)?)?;
    Ok(())
}

/// The module's `__getattr__` (PEP 562): the error for a name that this build leaves out.
#[cfg(not(all(feature = "gateway", feature = "lab")))]
#[pyfunction]
#[pyo3(name = "__getattr__")]
fn missing(py: Python<'_>, name: &str) -> PyResult<()> {
    if name.starts_with("__") {
        return Err(pyo3::exceptions::PyAttributeError::new_err(name.to_owned()));
    }
    let error = py.import("penstock.core")?.getattr("PenstockError")?;
    let message = format!("this build of Penstock has no {name}: `make install` builds everything");
    Err(PyErr::from_value(error.call1((message,))?))
}
