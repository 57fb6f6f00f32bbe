//! Tokenizer and chat template for offline use.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use penstock_structured_output::{
    Compiled, Compiler, GrammarError, MatchError, Vocabulary, run_trial,
};
use penstock_tokenizer::{Conversation, Detokenizer, TextError, TextModel, run_template_job};
use penstock_wire::GrammarKind;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

const COMPILE_LIMIT: Duration = Duration::from_secs(3);
const KINDS: [(&str, GrammarKind); 5] = [
    ("json", GrammarKind::JsonSchema),
    ("regex", GrammarKind::Regex),
    ("choice", GrammarKind::Choice),
    ("grammar", GrammarKind::Syntax),
    ("structural_tag", GrammarKind::StructuralTag),
];

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
    /// Created when the first grammar is compiled.
    compiler: OnceLock<Compiler>,
}

/// A grammar that constrains an output, encoded and compiled.
#[pyclass(frozen)]
pub(crate) struct Grammar {
    encoded: Vec<u8>,
    compiled: Compiled,
}

#[pymethods]
impl Tokenizer {
    #[new]
    #[pyo3(signature = (path, chat_template=None))]
    fn new(path: PathBuf, chat_template: Option<PathBuf>) -> PyResult<Self> {
        Ok(Self {
            model: TextModel::open(&path, chat_template.as_deref()).map_err(error)?,
            compiler: OnceLock::new(),
        })
    }

    /// Token ids of `text`; `add_special` adds BOS and EOS by the tokenizer's own rules.
    fn encode(&self, py: Python<'_>, text: &str, add_special: bool) -> PyResult<Vec<u32>> {
        py.detach(|| self.model.tokenizer.encode(text, add_special))
            .map_err(error)
    }

    /// Text of `ids`.
    fn decode(&self, ids: Vec<u32>, skip_special: bool) -> String {
        self.model.tokenizer.decode(&ids, skip_special)
    }

    /// Text of an output: the text of `ids` without an incomplete character at the end.
    fn output_text(&self, ids: Vec<u32>, skip_special: bool) -> String {
        let tokenizer = Arc::clone(&self.model.tokenizer);
        let mut detokenizer = Detokenizer::new(tokenizer, skip_special, &[]);
        let mut text = String::new();
        for id in ids {
            detokenizer.push_into(id, &mut text);
        }
        text + &detokenizer.finish()
    }

    /// Renders a conversation (JSON list of messages) to prompt text with the model's template.
    /// With `continue_final_message` the prompt ends with the last message.
    #[pyo3(signature = (
        messages_json,
        add_generation_prompt,
        tools_json="null",
        kwargs_json="{}",
        continue_final_message=false,
    ))]
    fn render_chat(
        &self,
        messages_json: &str,
        add_generation_prompt: bool,
        tools_json: &str,
        kwargs_json: &str,
        continue_final_message: bool,
    ) -> PyResult<String> {
        let messages = json("messages", messages_json)?;
        let tools: Option<Value> = json("tools", tools_json)?;
        let kwargs: Map<String, Value> = json("chat_template_kwargs", kwargs_json)?;
        let chat = Conversation {
            add_generation_prompt,
            tools: tools.as_ref(),
            continue_final: continue_final_message,
            template_kwargs: Some(&kwargs),
            ..Conversation::of(&messages)
        };
        let rendered = self.model.render(&chat, false).map_err(error)?;
        Ok(rendered.written())
    }

    /// The same tokenizer with the chat template `source` instead of the model's own.
    fn with_chat_template(&self, source: &str) -> PyResult<Self> {
        let model = self.model.with_template(source).map_err(error)?;
        let compiler = OnceLock::new();
        Ok(Self { model, compiler })
    }

    /// Compiles a grammar of kind `json`, `regex`, `choice`, `grammar` or `structural_tag`.
    /// ValueError names its defect.
    fn grammar(&self, py: Python<'_>, kind: &str, text: String) -> PyResult<Grammar> {
        let known = KINDS.iter().find(|(name, _)| *name == kind);
        let kind = known.ok_or_else(|| PyValueError::new_err(format!("no grammar is {kind}")))?;
        let grammar = penstock_wire::Grammar::new(kind.1, text);
        let encoded = grammar.encode();
        let encoded = encoded.map_err(|e| PyValueError::new_err(e.to_string()))?;
        let compile = || self.compiler()?.compile(&grammar, COMPILE_LIMIT);
        let compiled = py.detach(compile);
        let compiled = compiled.map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok(Grammar { encoded, compiled })
    }

    /// Size of the vocabulary in tokens.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.model.tokenizer.vocab_size()
    }
}

impl Tokenizer {
    fn compiler(&self) -> Result<&Compiler, GrammarError> {
        if self.compiler.get().is_none() {
            let made = Compiler::new(Vocabulary::new(&self.model.tokenizer)?);
            // An error means that another thread has set it first.
            let _ = self.compiler.set(made);
        }
        self.compiler.get().ok_or(GrammarError::Busy)
    }
}

#[pymethods]
impl Grammar {
    /// The encoded grammar, opaque bytes for a request.
    #[getter]
    fn encoded<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.encoded)
    }

    /// Matches tokens as an output. Returns the number of tokens that match, whether they are a
    /// complete output, and the seconds that each mask took.
    fn follow(&self, py: Python<'_>, ids: Vec<u32>) -> PyResult<(usize, bool, Vec<f64>)> {
        py.detach(|| {
            let mut matcher = self.compiled.matcher(Vec::new());
            let mut seconds = Vec::with_capacity(ids.len());
            for (taken, &id) in ids.iter().enumerate() {
                let began = Instant::now();
                // If only an end token may follow, there is no mask, because no end tokens are
                // given.
                let allowed = matcher.mask().is_ok_and(|mask| mask.allows(id));
                seconds.push(began.elapsed().as_secs_f64());
                if !allowed || !matcher.accept(id)? {
                    return Ok((taken, matcher.is_whole()?, seconds));
                }
            }
            Ok((ids.len(), matcher.is_whole()?, seconds))
        })
        .map_err(|e: MatchError| PyValueError::new_err(e.to_string()))
    }
}

/// Compiles the grammars of a job (JSON) on trial and returns the outcome.
#[pyfunction]
pub(crate) fn try_grammar(job: &str) -> PyResult<String> {
    run_trial(job).map_err(|e| PyValueError::new_err(e.to_string()))
}

/// Renders a chat template for another process; `job` and the outcome are JSON.
#[pyfunction]
pub(crate) fn run_template(job: &str) -> PyResult<String> {
    run_template_job(job).map_err(|e| PyValueError::new_err(e.to_string()))
}
