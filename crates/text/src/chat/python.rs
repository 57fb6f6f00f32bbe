//! Printed values as Python's Jinja prints them: `True`, `None`, `['a', 1]`.

use std::fmt::Write as _;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

use super::json::python_float;

/// Nested containers that are printed; JSON of a request cannot be deeper.
const DEEPEST: usize = 200;

/// Formatter of `{{ value }}`.
pub(super) fn print(
    out: &mut Output<'_>,
    _state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None => out.write_str(&string(value.clone())?)?,
    }
    Ok(())
}

/// `value | string`, Python's `str(value)`.
pub(super) fn string(value: Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut out = String::new();
    if !value.is_undefined() {
        write_repr(&value, 0, &mut out)?;
    }
    Ok(out)
}

fn write_repr(value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "value is nested too deeply to be printed",
        ));
    }
    match value.kind() {
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => write_number(value, out),
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            write_items(value, ('[', ']'), out, |item, out| {
                write_repr(&item, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            write_items(value, ('{', '}'), out, |key, out| {
                write_repr(&key, depth + 1, out)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, depth + 1, out)
            })?;
        }
        _ => _ = write!(out, "{value}"),
    }
    Ok(())
}

fn write_number(value: &Value, out: &mut String) {
    let float = f64::try_from(value.clone())
        .ok()
        .filter(|_| !value.is_integer());
    match float {
        Some(float) => out.push_str(&python_float(float)),
        None => _ = write!(out, "{value}"),
    }
}

fn write_items(
    container: &Value,
    brackets: (char, char),
    out: &mut String,
    write: impl Fn(Value, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(brackets.0);
    for (index, item) in container.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        if out.len() > super::OUTPUT_LIMIT {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "value is too large to be printed",
            ));
        }
        write(item, out)?;
    }
    out.push(brackets.1);
    Ok(())
}

/// Python's `repr` of a string: single quotes unless only double quotes avoid an escape.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => out.extend(['\\', quote]),
            _ if character.is_control() => _ = write!(out, "\\x{:02x}", character as u32),
            _ => out.push(character),
        }
    }
    out.push(quote);
}
