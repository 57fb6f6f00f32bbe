//! Token masks of grammars, for a backend that samples in Python.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_structured_output::{Constraint, Grammars, RowMask};
use penstock_wire::{Grammar, LATE_MASK, NO_TOKEN};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Grammars of a backend's sequences, computed on background threads.
#[pyclass(frozen)]
pub(crate) struct GrammarMasks {
    native: Grammars,
}

/// The grammar's token masks for one sequence.
#[pyclass(frozen)]
pub(crate) struct SequenceMasks {
    native: Arc<Constraint>,
}

/// The token mask of a position. If there is no mask, a sentinel, which replaces the token in the
/// step's result.
#[derive(IntoPyObject)]
pub(crate) enum Answer<'py> {
    Mask(Bound<'py, PyBytes>),
    Instead(i32),
}

#[pymethods]
impl GrammarMasks {
    /// Reads the vocabulary from the checkpoint at `path`; `threads` is the number of compute
    /// threads.
    #[new]
    fn new(path: PathBuf, threads: usize) -> Self {
        Self {
            native: Grammars::new(path, threads),
        }
    }

    /// Starts a sequence with an encoded grammar and `output`, the tokens that it already has.
    /// `ends` are the tokens that may end it. ValueError if the bytes are not a grammar.
    fn start(&self, grammar: &[u8], ends: Vec<u32>, output: Vec<i32>) -> PyResult<SequenceMasks> {
        let grammar = Grammar::decode(grammar);
        let grammar = grammar.map_err(|e| PyValueError::new_err(e.to_string()))?;
        let native = self.native.start(grammar, &ends, &output);
        Ok(SequenceMasks { native })
    }

    /// Cost of masks since the previous call: their number, seconds that computing them took,
    /// seconds that rows of the batch waited for them.
    fn take_cost(&self) -> (u32, f64, f64) {
        let cost = self.native.take_cost();
        (cost.count, cost.seconds, cost.wait_seconds)
    }
}

#[pymethods]
impl SequenceMasks {
    /// Appends output tokens. The next masks apply to the position after the last of them.
    fn accept(&self, tokens: Vec<i32>) {
        self.native.accept(&tokens);
        self.native.queue();
    }

    /// Sets the draft tokens of the next step, and starts computing their masks.
    fn expect(&self, drafts: Vec<i32>) {
        self.native.expect(&drafts);
        self.native.queue();
    }

    /// The mask of the position after the first `drafts` drafts: one bit per token of the
    /// vocabulary, lowest bit of the first byte first. `None` after a draft that the grammar
    /// forbids, `LATE_MASK` if the mask is not ready within `timeout` seconds, `NO_TOKEN` if the
    /// grammar failed.
    fn mask<'py>(&self, py: Python<'py>, drafts: usize, timeout: f64) -> Option<Answer<'py>> {
        let limit = Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or_default();
        match py.detach(|| self.native.mask(drafts, Instant::now() + limit)) {
            RowMask::Mask(mask) => {
                let bytes: Vec<u8> = (mask?.words().iter().flat_map(|w| w.to_le_bytes())).collect();
                Some(Answer::Mask(PyBytes::new(py, &bytes)))
            }
            RowMask::Late => Some(Answer::Instead(LATE_MASK)),
            RowMask::Failed => Some(Answer::Instead(NO_TOKEN)),
        }
    }
}
