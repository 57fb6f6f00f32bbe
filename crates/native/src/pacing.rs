//! Budget of prompt tokens in mixed steps, which also decode.

use penstock_pacing::PromptBudget as Budget;
use pyo3::prelude::*;

#[pyclass]
pub(crate) struct PromptBudget(Budget);

#[pymethods]
impl PromptBudget {
    #[new]
    fn new() -> Self {
        Self(Budget::default())
    }

    fn observe(&mut self, decodes: u32, prompts: u32, seconds: f64) {
        self.0.observe(decodes, prompts, seconds);
    }

    fn tokens(&self, decodes: u32, most: usize) -> usize {
        self.0.tokens(decodes, most)
    }
}
