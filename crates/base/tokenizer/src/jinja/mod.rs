//! Jinja2 as transformers configures it for chat templates: Python's values; Jinja's statements,
//! filters and tests; `trim_blocks`, `lstrip_blocks`, `{% break %}`, `{% generation %}`; the
//! functions `raise_exception` and `strftime_now`. A template can access only its variables.
//!
//! Steps, stack and output of a rendering are bounded. Building text also costs steps, which bounds
//! the memory.
//!
//! Differences from Python and Jinja: integers have 128 bits; `map` and `select` are eager; the
//! filters pprint, random, urlize, wordwrap and xmlattr and the function lipsum are missing; a
//! variable of the rendering can be read before a `set` of the same name in its scope. Jinja's
//! sandbox forbids mutation of lists, such as `append`, and has no `{% do %}`; both are supported
//! here.

mod ast;
mod attributes;
mod clock;
mod error;
mod escape;
mod evaluate;
mod expressions;
mod fields;
mod filters;
mod filters_of_lists;
mod format;
mod functions;
mod json;
mod lexer;
mod loops;
mod machine;
mod macros;
mod methods;
mod names;
mod operators;
mod output;
mod parser;
mod sort;
mod tests;
mod text;
mod value;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value as Json;

pub(crate) use error::{Error, ErrorKind};
pub(crate) use json::python_json;

/// Maximum prompt size in bytes, far above any context length.
const OUTPUT_LIMIT: usize = 32 << 20;

/// A parsed template.
#[derive(Debug)]
pub(crate) struct Template {
    body: ast::Body,
}

impl Template {
    pub(crate) fn parse(source: &str) -> Result<Self, Error> {
        let body = parser::parse(source)?;
        Ok(Self { body })
    }

    /// Renders the template with the variables; of duplicate names, the last one is used.
    ///
    /// # Errors
    /// The template calls `raise_exception`, an operation fails as in Python or Jinja, or a bound
    /// is exceeded.
    pub(crate) fn render<'v>(
        &self,
        variables: impl IntoIterator<Item = (&'v str, &'v Json)>,
    ) -> Result<String, Error> {
        let variables: HashMap<&str, &Json> = variables.into_iter().collect();
        let value = |(name, json)| Ok((Arc::from(name), value::Value::from_json(json)?));
        let variables: Result<_, Error> = variables.into_iter().map(value).collect();
        machine::Machine::new(variables?, SystemTime::now()).render(&self.body)
    }
}
