//! Options of a decoder: parsed from JSON and resolved once.

use penstock_kernels::{Isa, KvType, WeightFormat};
use serde::Deserialize;

use crate::error::DecoderError;

/// Options as the Python worker passes them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawOptions {
    /// Compute threads.
    pub threads: usize,
    /// Number of slots: the maximum number of sequences in flight.
    pub max_num_seqs: usize,
    /// Maximum tokens per step.
    pub max_batched_tokens: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// `auto`, `bfloat16` or `float32`.
    pub kv_dtype: String,
    /// `auto`, `none`, `int8` or `int4`.
    pub quantization: String,
    /// `auto`, `bfloat16` or `float32`: format of weights stored as floats.
    pub dtype: String,
    /// Name of an instruction set; `null` or `auto` for the best one.
    pub isa: Option<String>,
}

/// Numeric formats of weights and activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// f32 weights and activations.
    Exact,
    /// Weights quantised to 8 bits at load, 8-bit activations.
    Int8,
    /// Weights quantised to 4 bits at load, 8-bit activations.
    Int4,
    /// Quantised tensors keep their codes, or are requantised to 8 bits if the kernels do not
    /// support their format; other tensors are converted to `floats`.
    AsStored {
        /// Weight format of tensors that the file stores as floats.
        floats: WeightFormat,
    },
}

/// Resolved options.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Options {
    pub threads: usize,
    pub max_num_seqs: usize,
    pub max_batched_tokens: usize,
    pub block_size: usize,
    pub kv: KvType,
    pub numerics: Numerics,
    pub isa: Isa,
}

impl Options {
    /// Parses and resolves options.
    ///
    /// # Errors
    /// Unknown names, sizes out of range, or an instruction set that this CPU lacks.
    pub fn parse(json: &str) -> Result<Self, DecoderError> {
        let raw: RawOptions =
            serde_json::from_str(json).map_err(|e| DecoderError::Options(e.to_string()))?;
        raw.check_sizes()?;
        let exact =
            raw.quantization == "none" || raw.dtype == "float32" && raw.quantization == "auto";
        let numerics = match raw.quantization.as_str() {
            "none" => Numerics::Exact,
            "int8" => Numerics::Int8,
            "int4" => Numerics::Int4,
            "auto" => Numerics::AsStored {
                floats: raw.float_form()?,
            },
            other => return Err(unknown("quantization", other, "auto, none, int8, int4")),
        };
        let kv = match raw.kv_dtype.as_str() {
            "auto" if exact => KvType::F32,
            "auto" | "bfloat16" => KvType::Bf16,
            "float32" => KvType::F32,
            other => return Err(unknown("kv_dtype", other, "auto, bfloat16, float32")),
        };
        let isa = match raw.isa.as_deref() {
            None | Some("auto") => Isa::detect(),
            Some(name) => name.parse()?,
        };
        let RawOptions {
            threads,
            max_num_seqs,
            max_batched_tokens,
            block_size,
            ..
        } = raw;
        Ok(Self {
            threads,
            max_num_seqs,
            max_batched_tokens,
            block_size,
            kv,
            numerics,
            isa,
        })
    }
}

impl RawOptions {
    fn float_form(&self) -> Result<WeightFormat, DecoderError> {
        match self.dtype.as_str() {
            "auto" | "bfloat16" => Ok(WeightFormat::Bf16),
            "float32" => Ok(WeightFormat::F32),
            other => Err(unknown("dtype", other, "auto, bfloat16, float32")),
        }
    }

    fn check_sizes(&self) -> Result<(), DecoderError> {
        let sizes = [
            ("threads", self.threads, 1024),
            ("max_num_seqs", self.max_num_seqs, 1 << 20),
            ("max_batched_tokens", self.max_batched_tokens, 1 << 20),
            ("block_size", self.block_size, 4096),
        ];
        match sizes
            .iter()
            .find(|(_, value, max)| *value == 0 || value > max)
        {
            Some((name, value, max)) => Err(DecoderError::Options(format!(
                "{name} = {value} is not in 1..={max}"
            ))),
            None if !self.block_size.is_multiple_of(16) => Err(DecoderError::Options(format!(
                "block_size = {} is not a multiple of 16",
                self.block_size
            ))),
            None => Ok(()),
        }
    }
}

fn unknown(option: &str, value: &str, known: &str) -> DecoderError {
    DecoderError::Options(format!("{option} = {value:?} is unknown; known: {known}"))
}
