//! `tojson` as transformers defines it: Python's `json.dumps`, non-ASCII kept, nothing escaped for
//! HTML.

use std::fmt::Write as _;

use super::error::Error;
use super::machine::Steps;
use super::text::python_float;
use super::value::Value;

/// Deeper indents than any template uses would only multiply the output.
const WIDEST: i128 = 64;

struct Dialect {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort: bool,
}

/// `json.dumps(value, ensure_ascii, indent, separators, sort_keys)`
pub(super) fn dumps(value: &Value, options: [Option<Value>; 4]) -> Result<String, Error> {
    let [ascii, indent, separators, sort] = options;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text) | Value::Markup(text)) => Some(text.to_string()),
        Some(width) => match width.as_int() {
            Some(width) => Some(" ".repeat(width.clamp(0, WIDEST) as usize)),
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
        ascii: ascii.is_some_and(|ascii| ascii.is_true()),
        indent,
        item_separator,
        key_separator,
        sort: sort.is_some_and(|sort| sort.is_true()),
    };
    let mut out = String::new();
    dialect.write(value, 0, &mut out)?;
    Ok(out)
}

impl Dialect {
    fn write(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        if out.len() > super::OUTPUT_LIMIT {
            return Err(Error::failed("a value is too large to be written as JSON"));
        }
        match value {
            Value::Str(text) | Value::Markup(text) => self.quote(text, out),
            Value::List(list) => {
                self.items(&list.values(), level, out, ('[', ']'), |value, out| {
                    self.write(value, level + 1, out)
                })?;
            }
            Value::Tuple(items) => {
                self.items(&items.values, level, out, ('[', ']'), |value, out| {
                    self.write(value, level + 1, out)
                })?;
            }
            Value::Dict(dict) => {
                let mut entries: Vec<&(Value, Value)> = dict.entries.iter().collect();
                if self.sort {
                    let (steps, mut problem) = (Steps::default(), None);
                    entries.sort_by(|(a, _), (b, _)| {
                        let order = a.compared(b, "<", &steps).unwrap_or_else(|error| {
                            problem.get_or_insert(error);
                            None
                        });
                        order.unwrap_or(std::cmp::Ordering::Equal)
                    });
                    if let Some(error) = problem {
                        return Err(error);
                    }
                }
                self.items(&entries, level, out, ('{', '}'), |(key, value), out| {
                    let mut name = String::new();
                    match key {
                        Value::Str(text) | Value::Markup(text) => name.push_str(text),
                        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                            self.write(key, 0, &mut name)?;
                        }
                        other => {
                            return Err(Error::failed(format!(
                                "keys must be str, int, float, bool or None, not {}",
                                other.kind()
                            )));
                        }
                    }
                    self.quote(&name, out);
                    out.push_str(&self.key_separator);
                    self.write(value, level + 1, out)
                })?;
            }
            Value::None => out.push_str("null"),
            Value::Bool(true) => out.push_str("true"),
            Value::Bool(false) => out.push_str("false"),
            Value::Int(number) => _ = write!(out, "{number}"),
            Value::Float(number) if number.is_nan() => out.push_str("NaN"),
            Value::Float(number) if number.is_infinite() => {
                out.push_str(if *number > 0.0 {
                    "Infinity"
                } else {
                    "-Infinity"
                });
            }
            Value::Float(number) => out.push_str(&python_float(*number)),
            other => {
                let kind = other.kind();
                return Err(Error::failed(format!(
                    "Object of type {kind} is not JSON serializable"
                )));
            }
        }
        Ok(())
    }

    fn items<T>(
        &self,
        items: &[T],
        level: usize,
        out: &mut String,
        (open, close): (char, char),
        write: impl Fn(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |out: &mut String, level: usize| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), level));
            }
        };
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                out.push_str(&self.item_separator);
            }
            line(out, level + 1);
            write(item, out)?;
        }
        if !items.is_empty() {
            line(out, level);
        }
        out.push(close);
        Ok(())
    }

    fn quote(&self, text: &str, out: &mut String) {
        out.push('"');
        let mut units = [0; 2];
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                c if c < ' ' => {
                    _ = write!(out, "\\u{:04x}", c as u32);
                }
                c if self.ascii && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut units) {
                        _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// `json.dumps(value, ensure_ascii=False)`
pub(crate) fn python_json(value: &serde_json::Value) -> String {
    let text = Value::from_json(value).and_then(|value| dumps(&value, [const { None }; 4]));
    text.unwrap_or_default()
}
