//! Errors of loading and stepping.

use std::fmt;
use std::path::PathBuf;

use penstock_checkpoint::{FormatError, TensorView};
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
    /// The model has an unsupported feature.
    #[error("{0} is not supported yet")]
    Unsupported(String),
    /// Options JSON is wrong.
    #[error("decoder options: {0}")]
    Options(String),
    /// The other ranks cannot be reached.
    #[error(transparent)]
    Ranks(#[from] penstock_collectives::CommError),
    /// The instruction set is not available.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// A tensor does not have the shape that the spec implies.
    #[error("{place} has shape {found:?}; the model's configuration implies {expected:?}")]
    Shape {
        /// Tensor, at its first byte.
        place: Place,
        /// Shape in the file, outermost first.
        found: Vec<usize>,
        /// Shape needed.
        expected: Vec<usize>,
    },
    /// A weight is infinite or NaN: the file is damaged, or was written that way.
    #[error("{0} has a value in row {1} that is infinite or not a number: the file is damaged")]
    NotFinite(Place, usize),
    /// The KV pools cannot be allocated.
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
    Lost(#[from] penstock_collectives::Lost),
    /// The forward pass panicked; the decoder is unusable.
    #[error("the forward pass failed: {0}")]
    Failed(String),
}

/// Location of an invalid tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Tensor.
    pub tensor: String,
    /// File that holds it.
    pub file: PathBuf,
    /// Byte of the file.
    pub offset: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tensor,
            file,
            offset,
        } = self;
        write!(f, "{}: tensor {tensor:?} at byte {offset}", file.display())
    }
}

/// A byte of a tensor's file.
fn place(view: &TensorView<'_>, offset: usize) -> Place {
    Place {
        tensor: view.name.to_owned(),
        file: view.file.to_owned(),
        offset,
    }
}

/// The error of a stored row with a value that is not finite.
pub(crate) fn not_finite(view: &TensorView<'_>, row: usize) -> DecoderError {
    DecoderError::NotFinite(place(view, view.row_offset(row)), row)
}

/// The error of a tensor that has another shape.
pub(crate) fn shape(view: &TensorView<'_>, expected: Vec<usize>) -> DecoderError {
    DecoderError::Shape {
        place: place(view, view.offset),
        found: view.shape.clone(),
        expected,
    }
}
