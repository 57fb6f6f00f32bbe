//! `tojson` as transformers defines it: Python's `json.dumps` without escapes of non-ASCII
//! characters or HTML.

use std::cmp::Ordering;

use super::error::Error;
use super::functions::flag;
use super::output::{Output, Steps};
use super::sort;
use super::text::python_float;
use super::value::Value;

/// Maximum indent in bytes.
const WIDEST_INDENT: usize = 64;

struct Dialect {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort: bool,
}

/// `json.dumps(value, ensure_ascii, indent, separators, sort_keys)`
pub(super) fn dumps(
    value: &Value,
    options: [Option<Value>; 4],
    steps: &Steps,
) -> Result<String, Error> {
    let [ascii, indent, separators, sort] = options;
    let wide = || {
        Err(Error::limit(format!(
            "an indent is wider than {WIDEST_INDENT}"
        )))
    };
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text) | Value::Markup(text)) if text.len() > WIDEST_INDENT => {
            return wide();
        }
        Some(Value::Str(text) | Value::Markup(text)) => Some(text.to_string()),
        Some(width) => match width.as_int() {
            Some(width) if width > WIDEST_INDENT as i128 => return wide(),
            Some(width) => Some(" ".repeat(width.max(0) as usize)),
            None => return Err(Error::failed("indent must be a number or a string")),
        },
    };
    let pair = |separators: &Value| {
        let values = match separators {
            Value::List(list) => list.values().clone(),
            Value::Tuple(items) => items.values.clone(),
            _ => Vec::new(),
        };
        match values.as_slice() {
            [item, key] => Some((item.as_str()?.to_owned(), key.as_str()?.to_owned())),
            _ => None,
        }
    };
    let (item_separator, key_separator) = match separators {
        None | Some(Value::None) if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None | Some(Value::None) => (", ".to_owned(), ": ".to_owned()),
        Some(separators) => pair(&separators)
            .ok_or_else(|| Error::failed("separators must be a pair of strings"))?,
    };
    let dialect = Dialect {
        ascii: flag(ascii),
        indent,
        item_separator,
        key_separator,
        sort: flag(sort),
    };
    let mut out = Output::new(steps);
    dialect.write(value, 0, &mut out)?;
    Ok(out.into_text())
}

impl Dialect {
    fn write(&self, value: &Value, level: usize, out: &mut Output<'_>) -> Result<(), Error> {
        if out.len() > super::OUTPUT_LIMIT {
            return Err(Error::limit("a value is too large to be written as JSON"));
        }
        match value {
            Value::Str(text) | Value::Markup(text) => self.quote(text, out),
            Value::List(list) => {
                self.items(&list.values(), level, out, ('[', ']'), |value, out| {
                    self.write(value, level + 1, out)
                })
            }
            Value::Tuple(items) => {
                self.items(&items.values, level, out, ('[', ']'), |value, out| {
                    self.write(value, level + 1, out)
                })
            }
            Value::Dict(dict) => {
                let mut entries: Vec<&(Value, Value)> = dict.entries.iter().collect();
                if self.sort {
                    let steps = out.steps;
                    entries = sort::sorted(entries, &mut |(a, _), (b, _)| {
                        Ok(a.compared(b, "<", steps)? == Some(Ordering::Less))
                    })?;
                }
                self.items(&entries, level, out, ('{', '}'), |(key, value), out| {
                    match key {
                        Value::Str(text) | Value::Markup(text) => self.quote(text, out)?,
                        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                            out.push('"')?;
                            self.write(key, 0, out)?;
                            out.push('"')?;
                        }
                        other => {
                            return Err(Error::failed(format!(
                                "keys must be str, int, float, bool or None, not {}",
                                other.kind()
                            )));
                        }
                    }
                    out.push_str(&self.key_separator)?;
                    self.write(value, level + 1, out)
                })
            }
            Value::None => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Int(number) => out.push_str(&number.to_string()),
            Value::Float(number) if number.is_nan() => out.push_str("NaN"),
            Value::Float(number) if number.is_infinite() => out.push_str(if *number > 0.0 {
                "Infinity"
            } else {
                "-Infinity"
            }),
            Value::Float(number) => out.push_str(&python_float(*number)),
            other => {
                let kind = other.kind();
                Err(Error::failed(format!(
                    "Object of type {kind} is not JSON serializable"
                )))
            }
        }
    }

    fn items<T>(
        &self,
        items: &[T],
        level: usize,
        out: &mut Output<'_>,
        (open, close): (char, char),
        write: impl Fn(&T, &mut Output<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |out: &mut Output<'_>, level: usize| {
            let Some(indent) = &self.indent else {
                return Ok(());
            };
            out.push('\n')?;
            (0..level).try_for_each(|_| out.push_str(indent))
        };
        out.push(open)?;
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.item_separator)?;
            }
            line(out, level + 1)?;
            write(item, out)?;
        }
        if !items.is_empty() {
            line(out, level)?;
        }
        out.push(close)
    }

    fn quote(&self, text: &str, out: &mut Output<'_>) -> Result<(), Error> {
        out.push('"')?;
        let mut units = [0; 2];
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\"")?,
                '\\' => out.push_str("\\\\")?,
                '\n' => out.push_str("\\n")?,
                '\r' => out.push_str("\\r")?,
                '\t' => out.push_str("\\t")?,
                '\x08' => out.push_str("\\b")?,
                '\x0c' => out.push_str("\\f")?,
                c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32))?,
                c if self.ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut units) {
                        out.push_str(&format!("\\u{unit:04x}"))?;
                    }
                }
                c => out.push(c)?,
            }
        }
        out.push('"')
    }
}

/// `json.dumps(value, ensure_ascii=False)`
pub(crate) fn python_json(value: &serde_json::Value) -> String {
    let text = Value::from_json(value)
        .and_then(|value| dumps(&value, [const { None }; 4], &Steps::default()));
    text.unwrap_or_default()
}
