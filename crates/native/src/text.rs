//! Tokenizer and chat template for offline use.

use std::path::PathBuf;

use penstock_text::{TextError, TextModel};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn error(e: TextError) -> PyErr {
    PyValueError::new_err(e.to_string())
}

fn json<T: DeserializeOwned>(what: &str, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|e| PyValueError::new_err(format!("{what}: {e}")))
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

    /// Prompt text of a conversation (JSON list of messages), rendered by the model's template.
    #[pyo3(signature = (messages_json, add_generation_prompt, tools_json="null", kwargs_json="{}"))]
    fn render_chat(
        &self,
        messages_json: &str,
        add_generation_prompt: bool,
        tools_json: &str,
        kwargs_json: &str,
    ) -> PyResult<String> {
        let messages = json("messages", messages_json)?;
        let tools: Option<Value> = json("tools", tools_json)?;
        let kwargs = json("chat_template_kwargs", kwargs_json)?;
        self.model
            .render_chat(&messages, add_generation_prompt, tools.as_ref(), &kwargs)
            .map_err(error)
    }

    /// The same tokenizer with the chat template `source` in place of the model's own.
    fn with_chat_template(&self, source: &str) -> PyResult<Self> {
        let model = self.model.with_template(source).map_err(error)?;
        Ok(Self { model })
    }

    /// Tokens of the vocabulary.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.model.tokenizer.vocab_size()
    }
}
