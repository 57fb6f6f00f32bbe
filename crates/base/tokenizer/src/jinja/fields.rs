//! Python's `text.format(...)`.

use super::error::{Error, failed};
use super::format::formatted;
use super::functions::Args;
use super::machine::Machine;
use super::output::Output;
use super::value::Value;

impl Machine {
    pub(super) fn format(&self, text: &str, args: &Args) -> Result<String, Error> {
        let mut automatic = 0;
        self.format_at(text, args, &mut automatic, 3)
    }

    fn format_at(
        &self,
        text: &str,
        args: &Args,
        automatic: &mut usize,
        levels: usize,
    ) -> Result<String, Error> {
        if levels == 0 {
            return failed("Max string recursion exceeded");
        }
        let mut out = Output::new(&self.steps);
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at])?;
            let sign = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(sign) {
                out.push_str(sign)?;
                rest = after;
                continue;
            }
            if sign == "}" {
                return failed("Single '}' encountered in format string");
            }
            let Some(end) = closing(rest) else {
                return failed("expected '}' before end of string");
            };
            let field = &rest[..end];
            rest = &rest[end + 1..];
            let (name, spec) = field.split_once(':').unwrap_or((field, ""));
            let (name, conversion) = match name.split_once('!') {
                Some((name, conversion)) => (name, Some(conversion)),
                None => (name, None),
            };
            let value = self.field(name, args, automatic)?;
            let spec = self.format_at(spec, args, automatic, levels - 1)?;
            let value = match conversion {
                None => value,
                Some("s") => Value::Str(value.text(&self.steps)?),
                Some("r" | "a") => Value::str(value.repr(&self.steps)?),
                Some(_) => return failed("Unknown conversion specifier"),
            };
            out.push_str(&formatted(&value, &spec, &self.steps)?)?;
        }
        out.push_str(rest)?;
        Ok(out.into_text())
    }

    fn field(&self, name: &str, args: &Args, automatic: &mut usize) -> Result<Value, Error> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(end);
        let position = match first {
            "" => {
                *automatic += 1;
                Some(*automatic - 1)
            }
            digits => digits.parse().ok(),
        };
        let found = match position {
            Some(at) => args.positional.get(at).cloned(),
            None => args.named(first).cloned(),
        };
        let Some(mut value) = found else {
            return failed(match position {
                Some(at) => {
                    format!("Replacement index {at} out of range for positional args tuple")
                }
                None => format!("KeyError: '{first}'"),
            });
        };
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let Some((key, after)) = inside.split_once(']') else {
                    return failed("Missing ']' in format string");
                };
                let key = match key.parse() {
                    Ok(index) => Value::Int(index),
                    Err(_) => Value::str(key),
                };
                (value, rest) = (self.item(&value, &key)?, after);
            } else {
                let Some(inside) = rest.strip_prefix('.') else {
                    return failed("Only '.' or '[' may follow ']' in format field specifier");
                };
                let end = inside.find(['.', '[']).unwrap_or(inside.len());
                (value, rest) = (self.attribute(&value, &inside[..end])?, &inside[end..]);
            }
            value.defined()?;
        }
        Ok(value)
    }
}

fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return Some(at),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}
