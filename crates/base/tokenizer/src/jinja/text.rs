//! Python's rules for characters and printed values.

use std::sync::Arc;

use super::error::Error;
use super::output::{Output, Steps};
use super::value::{Value, View};

/// `str.isspace` of a character; `strip` removes the same characters.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Whether `repr` writes the character unescaped.
pub(super) fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // `escape_debug` escapes a combining mark only at the start of a text.
    let text = String::from_iter(['a', c]);
    text.escape_debug().count() == 2
}

/// Python's `repr` of a string: single quotes, or double quotes if they avoid an escape.
pub(super) fn write_quoted(text: &str, out: &mut Output<'_>) -> Result<(), Error> {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote)?;
    for character in text.chars() {
        let code = character as u32;
        match character {
            '\\' => out.push_str("\\\\")?,
            '\n' => out.push_str("\\n")?,
            '\r' => out.push_str("\\r")?,
            '\t' => out.push_str("\\t")?,
            _ if character == quote => {
                out.push('\\')?;
                out.push(quote)?;
            }
            _ if is_printable(character) => out.push(character)?,
            _ if code < 0x100 => out.push_str(&format!("\\x{code:02x}"))?,
            _ if code < 0x10000 => out.push_str(&format!("\\u{code:04x}"))?,
            _ => out.push_str(&format!("\\U{code:08x}"))?,
        }
    }
    out.push(quote)
}

/// Python's `repr` of a float: the shortest digits that round-trip, in scientific notation below
/// 1e-4 and from 1e16.
pub(super) fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let power: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&power) {
        return format!("{value:?}");
    }
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", power.unsigned_abs())
}

impl Value {
    /// `str(value)`
    pub(super) fn text(&self, steps: &Steps) -> Result<Arc<str>, Error> {
        match self {
            Self::Str(text) | Self::Markup(text) => Ok(text.clone()),
            other => {
                let mut out = Output::new(steps);
                other.write_text(&mut out)?;
                Ok(out.into_text().into())
            }
        }
    }

    /// Writes `str(value)`.
    pub(super) fn write_text(&self, out: &mut Output<'_>) -> Result<(), Error> {
        match self {
            Self::Str(text) | Self::Markup(text) => out.push_str(text),
            Self::Undefined(_) => Ok(()),
            other => other.write_repr(out, 0),
        }
    }

    /// `repr(value)`
    pub(super) fn repr(&self, steps: &Steps) -> Result<String, Error> {
        let mut out = Output::new(steps);
        self.write_repr(&mut out, 0)?;
        Ok(out.into_text())
    }

    fn write_repr(&self, out: &mut Output<'_>, depth: usize) -> Result<(), Error> {
        // Only namespaces can contain themselves.
        if depth > 300 {
            return Err(Error::failed("a value is nested too deeply to be printed"));
        }
        if out.len() > super::OUTPUT_LIMIT {
            return Err(Error::limit("a value is too large to be printed"));
        }
        match self {
            Self::Undefined(_) => out.push_str("Undefined"),
            Self::None => out.push_str("None"),
            Self::Bool(true) => out.push_str("True"),
            Self::Bool(false) => out.push_str("False"),
            Self::Int(value) => out.push_str(&value.to_string()),
            Self::Float(value) => out.push_str(&python_float(*value)),
            Self::Str(text) => write_quoted(text, out),
            Self::Markup(text) => {
                out.push_str("Markup(")?;
                write_quoted(text, out)?;
                out.push(')')
            }
            Self::List(list) => {
                out.push('[')?;
                write_each(&list.values(), out, depth)?;
                out.push(']')
            }
            Self::Tuple(items) => {
                out.push('(')?;
                write_each(&items.values, out, depth)?;
                out.push_str(if items.values.len() == 1 { ",)" } else { ")" })
            }
            Self::Dict(dict) => write_entries(&dict.entries, out, depth),
            Self::View(view, dict) => {
                out.push_str(match view {
                    View::Keys => "dict_keys([",
                    View::Values => "dict_values([",
                    View::Items => "dict_items([",
                })?;
                out.steps.charge_values(dict.entries.len())?;
                write_each(&dict.view(*view)?, out, depth)?;
                out.push_str("])")
            }
            Self::Range(range) => {
                let end = range.start + range.step * range.len as i128;
                out.push_str(&match range.step {
                    1 => format!("range({}, {end})", range.start),
                    step => format!("range({}, {end}, {step})", range.start),
                })
            }
            Self::Namespace(members) => {
                out.push_str("<Namespace ")?;
                write_entries(&members.borrow().entries, out, depth)?;
                out.push('>')
            }
            Self::Macro(object) => {
                out.push_str("<Macro ")?;
                write_quoted(&object.name, out)?;
                out.push('>')
            }
            Self::Method(method, _) => {
                let (name, kind) = (&method.1, method.0.kind());
                out.push_str(&format!("<built-in method {name} of {kind} object>"))
            }
            other => out.push_str(&format!("<{}>", other.kind())),
        }
    }
}

fn write_each(values: &[Value], out: &mut Output<'_>, depth: usize) -> Result<(), Error> {
    for (at, value) in values.iter().enumerate() {
        if at > 0 {
            out.push_str(", ")?;
        }
        value.write_repr(out, depth + 1)?;
    }
    Ok(())
}

fn write_entries(
    entries: &[(Value, Value)],
    out: &mut Output<'_>,
    depth: usize,
) -> Result<(), Error> {
    out.push('{')?;
    for (at, (key, value)) in entries.iter().enumerate() {
        if at > 0 {
            out.push_str(", ")?;
        }
        key.write_repr(out, depth + 1)?;
        out.push_str(": ")?;
        value.write_repr(out, depth + 1)?;
    }
    out.push('}')
}

/// Title case of a word's first character: if its upper case has several characters, only the first
/// one is upper case.
pub(super) fn titled(first: char) -> String {
    let mut upper = first.to_uppercase();
    let head = upper.next().into_iter();
    head.chain(upper.flat_map(char::to_lowercase)).collect()
}

fn is_cased(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase()
}

pub(super) fn title(text: &str) -> String {
    let mut out = String::new();
    let mut within = false;
    for c in text.chars() {
        match within {
            true => out.extend(c.to_lowercase()),
            false => out.push_str(&titled(c)),
        }
        within = is_cased(c);
    }
    out
}

/// `text.isalpha()` and similar methods.
pub(super) fn is_all(text: &str, name: &str) -> bool {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    match name {
        "isascii" => text.is_ascii(),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isdecimal" => all(|c| c.is_ascii_digit() || c.is_numeric() && is_decimal(c)),
        "isdigit" => {
            all(|c| c.is_ascii_digit() || c.is_numeric() && (is_decimal(c) || is_small(c)))
        }
        "isnumeric" => all(char::is_numeric),
        "isspace" => all(is_space),
        "isprintable" => text.chars().all(is_printable),
        "islower" => text.chars().any(is_cased) && !text.chars().any(char::is_uppercase),
        "isupper" => text.chars().any(is_cased) && !text.chars().any(char::is_lowercase),
        "istitle" => text.chars().any(is_cased) && title(text) == text,
        "isidentifier" => {
            all(|c| c.is_alphanumeric() || c == '_') && !text.starts_with(char::is_numeric)
        }
        _ => false,
    }
}

/// Decimal digits of scripts other than Latin.
fn is_decimal(c: char) -> bool {
    matches!(c as u32, 0x660..=0x669 | 0x6f0..=0x6f9 | 0x966..=0x96f | 0x9e6..=0x9ef
        | 0xe50..=0xe59 | 0xff10..=0xff19)
}

/// Superscript, subscript and circled digits.
fn is_small(c: char) -> bool {
    matches!(c as u32, 0xb2 | 0xb3 | 0xb9 | 0x2070..=0x2089 | 0x2460..=0x2468)
}
