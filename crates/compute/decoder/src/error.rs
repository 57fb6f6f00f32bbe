//! Errors of loading and stepping.

use std::fmt;
use std::path::PathBuf;

use penstock_checkpoint::{FormatError, TensorView};
use penstock_kernels::IsaError;

/// An error of the decoder. Messages name the fault, its location and the expected value.
#[derive(Debug, thiserror::Error)]
pub enum DecoderError {
    /// The checkpoint file is damaged or lacks a tensor.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Invalid spec or weight recipes.
    #[error("decoder spec: {0}")]
    Spec(String),
    /// The model has an unsupported feature.
    #[error("{0} is not supported yet")]
    Unsupported(String),
    /// Invalid options.
    #[error("decoder options: {0}")]
    Options(String),
    /// No connection to the other ranks.
    #[error(transparent)]
    Ranks(#[from] penstock_collectives::CommError),
    /// The instruction set is not available.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// A tensor's shape differs from the shape that the spec implies.
    #[error("{place} has shape {found:?}; the model's configuration implies {expected:?}")]
    Shape {
        /// Location of the tensor's first byte.
        place: ValueLocation,
        /// Shape in the file, outermost first.
        found: Vec<usize>,
        /// Expected shape.
        expected: Vec<usize>,
    },
    /// A weight in this row is infinite or NaN: the file is damaged or was written that way.
    #[error("{0} has a value in row {1} that is infinite or not a number: the file is damaged")]
    NotFinite(ValueLocation, usize),
    /// Numbers in a tensor contradict each other or the model.
    #[error("{place} {problem}")]
    Contradiction {
        /// Location of the first wrong number.
        place: ValueLocation,
        problem: String,
    },
    /// The KV pools cannot be allocated.
    #[error("KV blocks: {0}")]
    Allocate(String),
    /// The step plan is invalid.
    #[error("step plan: {0}")]
    Plan(String),
    /// Threads could not be started.
    #[error("cannot start a compute thread: {0}")]
    Threads(#[from] std::io::Error),
    /// Another rank was lost or did not answer; the decoder is unusable.
    #[error(transparent)]
    Group(#[from] penstock_collectives::GroupError),
    /// The forward pass panicked; the decoder is unusable.
    #[error("the forward pass failed: {0}")]
    Failed(String),
}

/// Location of an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueLocation {
    pub tensor: String,
    pub file: PathBuf,
    /// Byte offset in the file.
    pub offset: usize,
}

impl fmt::Display for ValueLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tensor,
            file,
            offset,
        } = self;
        write!(f, "{}: tensor {tensor:?} at byte {offset}", file.display())
    }
}

/// Location of byte `offset` in the file of a tensor.
fn place(view: &TensorView<'_>, offset: usize) -> ValueLocation {
    ValueLocation {
        tensor: view.name.to_owned(),
        file: view.file.to_owned(),
        offset,
    }
}

/// Error for a stored row with a non-finite value.
pub(crate) fn not_finite(view: &TensorView<'_>, row: usize) -> DecoderError {
    DecoderError::NotFinite(place(view, view.row_offset(row)), row)
}

/// Error for the number `item` of a tensor.
pub(crate) fn contradiction(view: &TensorView<'_>, item: usize, problem: String) -> DecoderError {
    let place = place(view, view.offset + item * view.dtype.block_bytes());
    DecoderError::Contradiction { place, problem }
}

/// Error for a tensor of the wrong shape.
pub(crate) fn shape(view: &TensorView<'_>, expected: Vec<usize>) -> DecoderError {
    DecoderError::Shape {
        place: place(view, view.offset),
        found: view.shape.clone(),
        expected,
    }
}
