//! Runs templates from requests in another process with limited memory. The job and its outcome are
//! JSON.

use std::fmt;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ChatTemplate;
use crate::{SpecialTokens, TextError};

type Run = dyn Fn(&str) -> io::Result<Option<String>> + Send + Sync;

/// Function that sends a job to another process, which runs [`run_template_job`]. Returns `None` if
/// the process was killed before its end, and an error if it could not start.
#[derive(Clone)]
pub struct Elsewhere(Arc<Run>);

impl fmt::Debug for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Elsewhere")
    }
}

#[derive(Serialize, Deserialize)]
struct Job {
    source: String,
    special_tokens: SpecialTokens,
    messages: Value,
    add_generation_prompt: bool,
    tools: Option<Value>,
    kwargs: Map<String, Value>,
}

/// Rendered text or error of a template. Errors of a model's files cannot occur here.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Text(String),
    Syntax(String),
    Raised(String),
    Limit(String),
    Message(usize, String),
    Messages(String),
    Failed(String),
}

impl Elsewhere {
    pub fn new(run: impl Fn(&str) -> io::Result<Option<String>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }

    /// Renders the template `source` in the other process, as [`ChatTemplate::render_adapted`].
    pub(crate) fn render(
        &self,
        source: &str,
        special_tokens: &SpecialTokens,
        messages: &Value,
        add_generation_prompt: bool,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Result<String, TextError> {
        let job = Job {
            source: source.to_owned(),
            special_tokens: special_tokens.clone(),
            messages: messages.clone(),
            add_generation_prompt,
            tools: tools.cloned(),
            kwargs: kwargs.clone(),
        };
        let job = serde_json::to_string(&job).map_err(failed)?;
        let outcome = (self.0)(&job).map_err(TextError::TemplateStart)?;
        let outcome = outcome.ok_or_else(|| TextError::TemplateLimit {
            limit: "it took too much memory or time".into(),
        })?;
        let outcome: Outcome = serde_json::from_str(&outcome).map_err(failed)?;
        outcome.into()
    }
}

/// Runs a template job that another process sent.
///
/// # Errors
/// The text is not a valid job. Errors of the template are part of the outcome.
pub fn run_template_job(job: &str) -> Result<String, serde_json::Error> {
    let job: Job = serde_json::from_str(job)?;
    let template = ChatTemplate::parse(&job.source, job.special_tokens);
    let text = template.and_then(|template| {
        let tools = job.tools.as_ref();
        template.render_adapted(&job.messages, job.add_generation_prompt, tools, &job.kwargs)
    });
    serde_json::to_string(&Outcome::from(text))
}

fn failed(error: serde_json::Error) -> TextError {
    TextError::TemplateRender {
        reason: error.to_string(),
    }
}

impl From<Result<String, TextError>> for Outcome {
    fn from(result: Result<String, TextError>) -> Self {
        match result {
            Ok(text) => Self::Text(text),
            Err(TextError::TemplateSyntax { reason }) => Self::Syntax(reason),
            Err(TextError::TemplateRaised { message }) => Self::Raised(message),
            Err(TextError::TemplateLimit { limit }) => Self::Limit(limit),
            Err(TextError::BadMessage { index, reason }) => Self::Message(index, reason),
            Err(TextError::BadMessages { reason }) => Self::Messages(reason),
            Err(TextError::TemplateRender { reason }) => Self::Failed(reason),
            Err(other) => Self::Failed(other.to_string()),
        }
    }
}

impl From<Outcome> for Result<String, TextError> {
    fn from(outcome: Outcome) -> Self {
        Err(match outcome {
            Outcome::Text(text) => return Ok(text),
            Outcome::Syntax(reason) => TextError::TemplateSyntax { reason },
            Outcome::Raised(message) => TextError::TemplateRaised { message },
            Outcome::Limit(limit) => TextError::TemplateLimit { limit },
            Outcome::Message(index, reason) => TextError::BadMessage { index, reason },
            Outcome::Messages(reason) => TextError::BadMessages { reason },
            Outcome::Failed(reason) => TextError::TemplateRender { reason },
        })
    }
}
