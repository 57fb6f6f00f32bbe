//! Chat templates: Jinja programs that come with a model and turn a conversation into prompt text.
//!
//! They run in an interpreter without loader, filesystem or network, with bounds on executed
//! instructions, recursion and output. What these do not bound are the values that a template
//! builds on purpose: a string doubled forty times fills the memory, a list nested a hundred
//! thousand times overflows the stack when it is dropped. A template is trusted as much as the
//! model file that it comes with, so one is taken from a request only where the operator says so,
//! and a server runs it in a process of its own ([`Elsewhere`]).

mod clock;
mod elsewhere;
mod generic;
mod json;
mod lists;
mod messages;
mod python;

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::time::SystemTime;

use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use crate::{SpecialTokens, TextError};

pub use elsewhere::{Elsewhere, run_template_job};

/// Instructions one rendering may execute; a message of a conversation costs some tens.
const FUEL: u64 = 10_000_000;
/// Nested macro calls and loops; templates that print JSON schemas recurse by the depth of the
/// schema.
const RECURSION: usize = 200;
/// Bytes of prompt; far over any context length.
const OUTPUT_LIMIT: usize = 32 << 20;

const DEFAULT: &str = "chat_template";
const WITH_TOOLS: &str = "chat_template.tool_use";

/// Template texts of a model.
#[derive(Debug, Clone)]
pub(crate) struct TemplateSources {
    pub(crate) default: String,
    /// Used in place of the default when the request has tools.
    pub(crate) with_tools: Option<String>,
}

/// A compiled chat template. Rendering follows transformers' `apply_chat_template`: the same
/// globals, `tojson`, block trimming, and Python's spelling of printed values.
pub struct ChatTemplate {
    environment: Environment<'static>,
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
        let mut environment = sandbox();
        add(&mut environment, DEFAULT, &sources.default)?;
        if let Some(source) = &sources.with_tools {
            add(&mut environment, WITH_TOOLS, source)?;
        }
        Ok(Self {
            environment,
            special_tokens,
            knows_tools: sources.with_tools.is_some() || sources.default.contains("tools"),
            sources: sources.default + sources.with_tools.as_deref().unwrap_or_default(),
            takes_parts: [OnceLock::new(), OnceLock::new()],
        })
    }

    /// The template's text, as it runs for requests without tools.
    pub fn source(&self) -> String {
        let template = self.environment.get_template(DEFAULT);
        template.map_or_else(|_| String::new(), |template| template.source().to_owned())
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
        if !self.sources.contains("tool_calls") {
            generic::write_history(&mut messages);
        }
        if let Some(tools) = tools.filter(|_| !self.knows_tools()) {
            generic::list_tools(&mut messages, tools);
        }
        let messages = Value::Array(messages);
        let variables = self.variables(messages, add_generation_prompt, tools, kwargs);
        self.run(self.name_for(tools.is_some()), &variables)
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
            let text = self.run(self.name_for(has_tools), &variables);
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

    fn name_for(&self, has_tools: bool) -> &'static str {
        let special = has_tools && self.environment.get_template(WITH_TOOLS).is_ok();
        if special { WITH_TOOLS } else { DEFAULT }
    }

    fn run(&self, name: &str, variables: &Map<String, Value>) -> Result<String, TextError> {
        let mut output = BoundedOutput::default();
        let template = self.environment.get_template(name).map_err(syntax_error)?;
        match template.render_captured_to(variables, &mut output) {
            Ok(_) => Ok(String::from_utf8_lossy(&output.bytes).into_owned()),
            Err(_) if output.full => Err(TextError::TemplateLimit {
                limit: format!("it wrote more than {} MiB", OUTPUT_LIMIT >> 20),
            }),
            Err(error) => Err(render_error(&error)),
        }
    }
}

/// An interpreter without access beyond its variables.
fn sandbox() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_debug(false);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_formatter(python::print);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", python::string);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", |format: &str| {
        clock::strftime(format, SystemTime::now())
    });
    lists::add(&mut environment);
    environment
}

fn add(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: &str,
) -> Result<(), TextError> {
    environment
        .add_template_owned(name, in_our_dialect(source))
        .map_err(syntax_error)
}

/// The source with some tags written otherwise. `{% generation %}` marks the assistant's tokens for
/// training; here it is a block that is always rendered. Empty lists are ones that can be changed.
fn in_our_dialect(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        let end = tag.find("%}").unwrap_or(tag.len());
        let (inside, after) = tag.split_at(end);
        match inside.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+')) {
            "generation" => out.push_str(&inside.replace("generation", "if true")),
            "endgeneration" => out.push_str(&inside.replace("endgeneration", "endif")),
            _ => match lists::with_lists(inside) {
                Some(changed) => out.push_str(&changed),
                None => out.push_str(inside),
            },
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The message of a template that refuses a conversation; found again in the chain of sources.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn syntax_error(error: Error) -> TextError {
    TextError::TemplateSyntax {
        reason: error.to_string(),
    }
}

fn render_error(error: &Error) -> TextError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(link) = cause {
        if let Some(Raised(message)) = link.downcast_ref() {
            return TextError::TemplateRaised {
                message: message.clone(),
            };
        }
        cause = link.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TextError::TemplateLimit {
            limit: format!("it ran for more than {FUEL} instructions"),
        };
    }
    TextError::TemplateRender {
        reason: error.to_string(),
    }
}

#[derive(Default)]
struct BoundedOutput {
    bytes: Vec<u8>,
    full: bool,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_LIMIT {
            self.full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::in_our_dialect;

    #[test]
    fn generation_tags_become_plain_blocks() {
        let source = "a{% generation %}b{%- endgeneration -%}{{ generation }}{% if generation \
            %}{% endif %}{%";
        let expected =
            "a{% if true %}b{%- endif -%}{{ generation }}{% if generation %}{% endif %}{%";
        assert_eq!(in_our_dialect(source), expected);
    }
}
