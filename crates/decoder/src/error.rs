//! What can go wrong between a checkpoint and a step.

use penstock_formats::{FormatError, TensorView};
use penstock_kernels::IsaError;

/// An error of the decoder. Each names what was wrong, where, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum DecoderError {
    /// The container is damaged or lacks a tensor.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The spec (or names) JSON is wrong.
    #[error("decoder spec: {0}")]
    Spec(String),
    /// The model has a feature that is not built.
    #[error("{0} is not supported yet")]
    Unsupported(String),
    /// Options JSON is wrong.
    #[error("decoder options: {0}")]
    Options(String),
    /// The other ranks cannot be reached.
    #[error(transparent)]
    Ranks(#[from] penstock_comm::CommError),
    /// The instruction set is not to be had.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// A tensor does not have the shape that the spec implies.
    #[error("tensor {name:?} has shape {found:?}; the model's configuration implies {expected:?}")]
    Shape {
        /// Tensor.
        name: String,
        /// Shape in the file, outermost first.
        found: Vec<usize>,
        /// Shape needed.
        expected: Vec<usize>,
    },
    /// A weight is infinite or not a number: the file is damaged, or was made so.
    #[error(
        "tensor {0:?} has a value in row {1} that is infinite or not a number: the file is damaged"
    )]
    NotFinite(String, usize),
    /// KV pools that cannot be made.
    #[error("KV blocks: {0}")]
    Allocate(String),
    /// A step plan that breaks the contract.
    #[error("step plan: {0}")]
    Plan(String),
    /// Threads could not be started.
    #[error("cannot start a compute thread: {0}")]
    Threads(#[from] std::io::Error),
    /// Another rank was lost, or never answered; the decoder is unusable.
    #[error(transparent)]
    Lost(#[from] penstock_comm::Lost),
    /// The forward pass panicked; the decoder is unusable.
    #[error("the forward pass failed: {0}")]
    Failed(String),
}

/// The error of a tensor that has another shape.
pub(crate) fn shape(view: &TensorView<'_>, expected: Vec<usize>) -> DecoderError {
    DecoderError::Shape {
        name: view.name.to_owned(),
        found: view.shape.clone(),
        expected,
    }
}
