//! Chat templates: Jinja programs that come with a model and turn a conversation into prompt text.
//!
//! They run in an interpreter of this crate that reaches nothing but their variables, with bounds
//! on steps, memory, recursion and output. A template is trusted as much as the model file that it
//! comes with, so one is taken from a request only where the operator says so, and a server runs it
//! in a process of its own ([`Elsewhere`]).

mod adapted;
mod elsewhere;
mod generic;
mod messages;
mod trial;

use std::fmt;
use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::jinja::{Error, ErrorKind, Template};
use crate::{SpecialTokens, TextError};

use adapted::{FORMS, adapted};

pub use elsewhere::{Elsewhere, run_template_job};

/// Template texts of a model.
#[derive(Debug, Clone)]
pub(crate) struct TemplateSources {
    pub(crate) default: String,
    /// Used in place of the default when the request has tools.
    pub(crate) with_tools: Option<String>,
}

/// A chat template that has been read. Rendering follows transformers' `apply_chat_template`.
pub struct ChatTemplate {
    template: Template,
    /// Taken when there are tools.
    with_tools: Option<Template>,
    source: String,
    special_tokens: SpecialTokens,
    sources: String,
    knows_tools: bool,
    /// Whether the template without and with tools takes parts, once a request has had some.
    takes_parts: [OnceLock<bool>; 2],
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate")
            .field("special_tokens", &self.special_tokens)
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles the template. `special_tokens` become variables (`bos_token`, `eos_token`, ...).
    pub fn parse(source: &str, special_tokens: SpecialTokens) -> Result<Self, TextError> {
        Self::new(
            TemplateSources {
                default: source.to_owned(),
                with_tools: None,
            },
            special_tokens,
        )
    }

    pub(crate) fn new(
        sources: TemplateSources,
        special_tokens: SpecialTokens,
    ) -> Result<Self, TextError> {
        let read = |source: &String| Template::parse(source).map_err(text_error);
        Ok(Self {
            template: read(&sources.default)?,
            with_tools: sources.with_tools.as_ref().map(read).transpose()?,
            special_tokens,
            knows_tools: sources.with_tools.is_some() || sources.default.contains("tools"),
            sources: sources.default.clone() + sources.with_tools.as_deref().unwrap_or_default(),
            source: sources.default,
            takes_parts: [OnceLock::new(), OnceLock::new()],
        })
    }

    /// The template's text, as it runs for requests without tools.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Prompt text of `messages`, an array of `{role, content, ...}` whose content is a string,
    /// null or a list of text parts, which the template gets joined: as a string, or as one part
    /// where it writes parts itself.
    /// `kwargs` are further variables (`documents`, `enable_thinking`, ...); they do not replace
    /// the standard ones.
    ///
    /// # Errors
    /// Malformed messages, a template that raises (its message), fails, or exceeds a limit.
    pub fn render(
        &self,
        messages: &Value,
        add_generation_prompt: bool,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Result<String, TextError> {
        let tools = tools.filter(|tools| tools.as_array().is_none_or(|list| !list.is_empty()));
        let parts = messages::have_parts(messages) && self.takes_parts(tools.is_some());
        let mut messages = messages::normalised(messages, parts)?;
        for message in messages.iter_mut().filter_map(Value::as_object_mut) {
            messages::spell_reasoning(message, &self.sources);
        }
        if !self.sources.contains("tool_calls") {
            generic::write_history(&mut messages);
        }
        let print = |messages: Vec<Value>| {
            let messages = Value::Array(messages);
            let variables = self.variables(messages, add_generation_prompt, tools, kwargs);
            self.run(tools.is_some(), &variables)
        };
        let Some(unknown) = tools.filter(|_| !self.knows_tools()) else {
            return print(messages);
        };
        let listed = |role: &str| {
            let mut messages = messages.clone();
            generic::list_tools(&mut messages, unknown, role);
            print(messages)
        };
        let has_system = messages
            .first()
            .is_some_and(|first| first["role"] == "system");
        match listed("system") {
            Err(error) if error.is_refusal() && !has_system => listed("user").map_err(|_| error),
            printed => printed,
        }
    }

    /// [`Self::render`]; what the template refuses as it is, it is asked to take in other forms.
    pub(crate) fn render_adapted(
        &self,
        messages: &Value,
        add_generation_prompt: bool,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Result<String, TextError> {
        let refused = match self.render(messages, add_generation_prompt, tools, kwargs) {
            Err(error) if error.is_refusal() => error,
            printed => return printed,
        };
        let forms = (0..FORMS).find_map(|form| {
            let (messages, tools) = adapted(messages, tools, form);
            let printed = self.render(&messages, add_generation_prompt, tools.as_ref(), kwargs);
            printed.ok()
        });
        forms.ok_or(refused)
    }

    /// `kwargs` with the standard variables, which they do not replace.
    fn variables(
        &self,
        messages: Value,
        add_generation_prompt: bool,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut variables = kwargs.clone();
        let tokens = self
            .special_tokens
            .iter()
            .map(|(role, text)| (role.clone(), Value::from(text.as_str())));
        variables.extend(tokens);
        variables.insert("messages".to_owned(), messages);
        variables.insert("tools".to_owned(), tools.cloned().unwrap_or(Value::Null));
        variables.insert(
            "add_generation_prompt".to_owned(),
            Value::Bool(add_generation_prompt),
        );
        variables.entry("documents").or_insert(Value::Null);
        variables
    }

    /// Whether the template writes the parts of a user's content itself; others get one string.
    fn takes_parts(&self, has_tools: bool) -> bool {
        *self.takes_parts[usize::from(has_tools)].get_or_init(|| {
            let variables = self.variables(messages::probe(), false, None, &Map::new());
            let text = self.run(has_tools, &variables);
            text.is_ok_and(|text| messages::takes_parts(&text))
        })
    }

    /// Whether the template itself prints tools and calls. One that does not gets them as text.
    pub fn knows_tools(&self) -> bool {
        self.knows_tools
    }

    /// The texts of all templates.
    pub fn sources(&self) -> &str {
        &self.sources
    }

    fn run(&self, has_tools: bool, variables: &Map<String, Value>) -> Result<String, TextError> {
        let with_tools = self.with_tools.as_ref().filter(|_| has_tools);
        let template = with_tools.unwrap_or(&self.template);
        template.render(variables).map_err(text_error)
    }
}

fn text_error(error: Error) -> TextError {
    let reason = error.to_string();
    match error.kind {
        ErrorKind::Syntax => TextError::TemplateSyntax { reason },
        ErrorKind::Raised => TextError::TemplateRaised { message: reason },
        ErrorKind::Limit => TextError::TemplateLimit { limit: reason },
        ErrorKind::Failed => TextError::TemplateRender { reason },
    }
}
