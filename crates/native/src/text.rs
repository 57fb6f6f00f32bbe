//! Tokenizer and chat template for offline use.

use std::path::PathBuf;

use penstock_text::{TextError, TextModel};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

fn error(e: TextError) -> PyErr {
    PyValueError::new_err(e.to_string())
}

/// A model's tokenizer and chat template.
#[pyclass(frozen)]
pub(crate) struct Tokenizer {
    model: TextModel,
}

#[pymethods]
impl Tokenizer {
    #[new]
    #[pyo3(signature = (path, chat_template=None))]
    fn new(path: PathBuf, chat_template: Option<PathBuf>) -> PyResult<Self> {
        Ok(Self {
            model: TextModel::open(&path, chat_template.as_deref()).map_err(error)?,
        })
    }

    /// Token ids of `text`; with `add_special`, the BOS and EOS that the tokenizer's own rules add.
    fn encode(&self, py: Python<'_>, text: &str, add_special: bool) -> PyResult<Vec<u32>> {
        py.detach(|| self.model.tokenizer.encode(text, add_special))
            .map_err(error)
    }

    /// Text of `ids`.
    fn decode(&self, ids: Vec<u32>, skip_special: bool) -> String {
        self.model.tokenizer.decode(&ids, skip_special)
    }

    /// Token ids of a conversation (JSON list of messages) rendered by the model's template.
    fn apply_chat_template(
        &self,
        messages_json: &str,
        add_generation_prompt: bool,
    ) -> PyResult<Vec<u32>> {
        let messages = serde_json::from_str(messages_json)
            .map_err(|e| PyValueError::new_err(format!("messages: {e}")))?;
        let kwargs = serde_json::Map::new();
        self.model
            .encode_chat(&messages, add_generation_prompt, None, &kwargs)
            .map_err(error)
    }

    /// Tokens of the vocabulary.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.model.tokenizer.vocab_size()
    }
}
