//! Chat templates: Jinja programs from a model's files that render a conversation as prompt text.
//!
//! Templates run in this crate's interpreter. They can access only their variables, and steps,
//! memory, recursion and output are bounded. Within these bounds, templates from a model's files
//! are trusted. Templates from requests require the operator's permission, and a server runs them
//! in a separate process ([`Elsewhere`]).

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
    /// Replaces the default template for requests with tools.
    pub(crate) with_tools: Option<String>,
}

/// A parsed chat template. Rendering follows transformers' `apply_chat_template`.
pub struct ChatTemplate {
    template: Template,
    /// Used if there are tools.
    with_tools: Option<Template>,
    source: String,
    special_tokens: Map<String, Value>,
    sources: String,
    knows_tools: bool,
    knows_calls: bool,
    reads_thinking: bool,
    /// Whether the template without and with tools supports parts; determined at the first request
    /// with parts.
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
        let all = sources.default.clone() + sources.with_tools.as_deref().unwrap_or_default();
        let special_tokens = special_tokens.into_iter();
        Ok(Self {
            template: read(&sources.default)?,
            with_tools: sources.with_tools.as_ref().map(read).transpose()?,
            special_tokens: special_tokens
                .map(|(role, text)| (role, text.into()))
                .collect(),
            knows_tools: sources.with_tools.is_some() || sources.default.contains("tools"),
            knows_calls: all.contains("tool_calls"),
            reads_thinking: messages::reads_thinking(&all),
            sources: all,
            source: sources.default,
            takes_parts: [OnceLock::new(), OnceLock::new()],
        })
    }

    /// Source of the template for requests without tools.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders `messages`, an array of `{role, content, ...}`, as prompt text. Content is a string,
    /// null or a list of text parts. Parts are joined to a string, or to one part for templates
    /// that iterate over parts. `kwargs` are additional variables (`documents`, `enable_thinking`,
    /// ...); they do not override the standard ones.
    ///
    /// # Errors
    /// Malformed messages, or a template that raises (with its message), fails, or exceeds a limit.
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
            messages::spell_reasoning(message, self.reads_thinking);
        }
        if !self.knows_calls {
            generic::write_history(&mut messages);
        }
        let print = |messages: Vec<Value>| {
            let messages = Value::Array(messages);
            let template = self.template(tools.is_some());
            self.printed(template, &messages, add_generation_prompt, tools, kwargs)
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

    /// Like [`Self::render`]. If the template refuses the conversation, falls back to the first
    /// alternative form that succeeds.
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

    /// Whether the template iterates over the parts of a user's content; others get a string.
    fn takes_parts(&self, has_tools: bool) -> bool {
        *self.takes_parts[usize::from(has_tools)].get_or_init(|| {
            let template = self.template(has_tools);
            let probe = messages::probe();
            let text = self.printed(template, &probe, false, None, &Map::new());
            text.is_ok_and(|text| messages::takes_parts(&text))
        })
    }

    /// Whether the template renders tools itself. For other templates they are added as text.
    pub fn knows_tools(&self) -> bool {
        self.knows_tools
    }

    /// Sources of the templates without and with tools, concatenated.
    pub fn sources(&self) -> &str {
        &self.sources
    }

    fn template(&self, has_tools: bool) -> &Template {
        let with_tools = self.with_tools.as_ref().filter(|_| has_tools);
        with_tools.unwrap_or(&self.template)
    }

    /// Renders one of the templates. `kwargs` do not override the standard variables.
    fn printed(
        &self,
        template: &Template,
        messages: &Value,
        add_generation_prompt: bool,
        tools: Option<&Value>,
        kwargs: &Map<String, Value>,
    ) -> Result<String, TextError> {
        let null = Value::Null;
        let add_generation_prompt = Value::Bool(add_generation_prompt);
        let given = kwargs.iter().chain(&self.special_tokens);
        let standard = [
            ("messages", messages),
            ("tools", tools.unwrap_or(&null)),
            ("add_generation_prompt", &add_generation_prompt),
        ];
        let variables = std::iter::once(("documents", &null))
            .chain(given.map(|(name, value)| (name.as_str(), value)))
            .chain(standard);
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
