//! Jinja2 as transformers configures it for chat templates: Python's values, Jinja's statements,
//! filters and tests, `trim_blocks`, `lstrip_blocks`, `{% break %}`, `{% generation %}`, and the
//! functions `raise_exception` and `strftime_now`. It reaches nothing but its variables.
//!
//! A rendering has so many steps, so much stack and so much output; a step is also so many bytes
//! that it builds, which bounds the memory.
//!
//! Not Python's: integers have 128 bits; `map` and `select` run when they are called, not when
//! their values are read; the filters pprint, random, urlize, wordwrap and xmlattr and the function
//! lipsum are not there; a variable of the rendering is there before its scope sets another of its
//! name. Beyond Jinja's sandbox: lists change by `append` and the like, and there
//! is `{% do %}`.

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
mod parser;
mod tests;
mod text;
mod value;

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value as Json};

pub(crate) use error::{Error, ErrorKind};
pub(crate) use json::python_json;

/// Bytes of prompt; far over any context length.
const OUTPUT_LIMIT: usize = 32 << 20;

/// A template that has been read.
#[derive(Debug)]
pub(crate) struct Template {
    body: ast::Body,
}

impl Template {
    pub(crate) fn parse(source: &str) -> Result<Self, Error> {
        let body = parser::parse(source)?;
        Ok(Self { body })
    }

    /// The template's text for the variables.
    ///
    /// # Errors
    /// What the template raises, what Python or Jinja refuse, and a bound that is exceeded.
    pub(crate) fn render(&self, variables: &Map<String, Json>) -> Result<String, Error> {
        let machine = machine::Machine::new(SystemTime::now());
        let mut values = Vec::with_capacity(variables.len());
        for (name, value) in variables {
            values.push((Arc::from(name.as_str()), value::Value::from_json(value)?));
        }
        machine.render(&self.body, values)
    }
}
