//! Structural tags: free text with constrained parts, in vLLM's older format and in xgrammar's.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::error::{GrammarError, excerpt};
use crate::{gbnf, lark, schema};

/// Maximum nesting of formats.
const MAX_DEPTH: usize = 32;
const TEXT: &str = r"/(.|\n)*/";

type Result<T> = std::result::Result<T, GrammarError>;
type Object = Map<String, Value>;

/// Translates a structural tag to Lark. `special` has the texts of special tokens, longest first.
pub(crate) fn to_lark(text: &str, special: &[(String, u32)]) -> Result<String> {
    let tag: Object = serde_json::from_str(text).map_err(|e| {
        GrammarError::invalid(format!("a structural tag must be a JSON object: {e}"))
    })?;
    let format = match tag.get("format") {
        Some(format) => format.clone(),
        None => of_structures(&tag)?,
    };
    let mut writer = Writer {
        special,
        rules: String::new(),
        count: 0,
    };
    let start = writer.format(&format, MAX_DEPTH)?;
    Ok(format!("start: {start}\n{}", writer.rules))
}

/// Converts vLLM's `structures` and `triggers` to xgrammar's `triggered_tags`.
fn of_structures(tag: &Object) -> Result<Value> {
    let tags = list(tag, "structures")?.iter().map(|structure| {
        let structure = object(structure)?;
        let schema = structure.get("schema").cloned().unwrap_or(Value::Null);
        Ok(json!({
            "begin": string(structure, "begin")?,
            "content": {"type": "json_schema", "json_schema": schema},
            "end": string(structure, "end")?,
        }))
    });
    let tags = tags.collect::<Result<Vec<_>>>()?;
    Ok(json!({"type": "triggered_tags", "triggers": list(tag, "triggers")?, "tags": tags}))
}

struct Writer<'a> {
    special: &'a [(String, u32)],
    rules: String,
    count: usize,
}

impl Writer<'_> {
    /// Adds a rule and returns its name.
    fn rule(&mut self, options: &str, body: &str) -> String {
        self.count += 1;
        let name = format!("rule_{}", self.count);
        let _ = writeln!(self.rules, "{name}{options}: {body}");
        name
    }

    /// Adds a terminal and returns its name.
    fn terminal(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("TEXT_{}", self.count);
        let _ = writeln!(self.rules, "{name}: {body}");
        name
    }

    /// Lark expression of a format.
    fn format(&mut self, format: &Value, depth: usize) -> Result<String> {
        let format = object(format)?;
        if depth == 0 {
            return Err(invalid("formats are nested too deep"));
        }
        match string(format, "type")? {
            "const_string" => Ok(self.literal(string(format, "value")?)),
            "json_schema" => {
                let schema = format.get("json_schema").unwrap_or(&Value::Null);
                let schema = schema::prepared(schema)?;
                Ok(self.rule("", &format!("%json {schema}")))
            }
            "regex" => {
                let pattern = lark::unanchored(string(format, "pattern")?);
                Ok(self.terminal(&lark::regex(pattern)))
            }
            "grammar" => {
                let text = string(format, "grammar")?;
                let inner = match gbnf::is_gbnf(text) {
                    true => gbnf::to_lark(text)?,
                    false => lark::checked(text)?,
                };
                Ok(self.rule("", &format!("%lark {{\n{inner}\n}}")))
            }
            "any_text" => {
                no_other(format, &["type"])?;
                Ok(self.terminal(TEXT))
            }
            "sequence" => {
                let elements = self.formats(list(format, "elements")?, depth)?;
                Ok(format!("({})", elements.join(" ")))
            }
            "or" => {
                let elements = self.formats(list(format, "elements")?, depth)?;
                Ok(format!("({})", elements.join(" | ")))
            }
            "tag" => self.tag(format, "", depth),
            "triggered_tags" => self.triggered(format, depth),
            "tags_with_separator" => self.separated(format, depth),
            other => Err(GrammarError::Invalid(format!(
                "the format {other:.40} is not supported"
            ))),
        }
    }

    fn formats(&mut self, formats: &[Value], depth: usize) -> Result<Vec<String>> {
        let last = formats.len().saturating_sub(1);
        let mut out = Vec::new();
        for (i, format) in formats.iter().enumerate() {
            if i < last && format.get("type").and_then(Value::as_str) == Some("any_text") {
                return Err(invalid("any_text must stand last, or in a tag with an end"));
            }
            out.push(self.format(format, depth - 1)?);
        }
        if out.is_empty() {
            return Err(invalid("elements must not be empty"));
        }
        Ok(out)
    }

    /// A tag whose begin has been emitted up to the end of `trigger`.
    fn tag(&mut self, tag: &Object, trigger: &str, depth: usize) -> Result<String> {
        let begin = string(tag, "begin")?;
        let begin = self.literal(begin.strip_prefix(trigger).unwrap_or(begin));
        let ends = match tag.get("end") {
            Some(Value::String(end)) => vec![end.as_str()],
            Some(Value::Array(_)) => strings(tag, "end")?,
            other => return Err(mistyped("end", "a string or a list of strings", other)),
        };
        let content = tag.get("content").unwrap_or(&Value::Null);
        if content.get("type").and_then(Value::as_str) == Some("any_text") {
            no_other(object(content)?, &["type"])?;
            let rest = self.until(&ends)?;
            return Ok(format!("({begin} {rest})"));
        }
        let content = self.format(content, depth - 1)?;
        let ends: Vec<String> = ends.iter().map(|end| self.literal(end)).collect();
        Ok(format!("({begin} {content} ({}))", ends.join(" | ")))
    }

    /// Any text up to and including the first of `ends`.
    fn until(&mut self, ends: &[&str]) -> Result<String> {
        let mut options = Vec::new();
        let (special, plain): (Vec<&str>, Vec<&str>) =
            ends.iter().partition(|end| self.special_id(end).is_some());
        if plain.iter().any(|end| end.is_empty()) {
            return Ok(self.terminal(TEXT));
        }
        if !plain.is_empty() {
            let pattern = format!(r"/(.|\n)*({})/", alternatives(&plain));
            options.push(self.rule("[lazy]", &pattern));
        }
        for end in special {
            let text = self.terminal(TEXT);
            options.push(format!("({text} {})", self.literal(end)));
        }
        Ok(format!("({})", options.join(" | ")))
    }

    /// Any text, with a tag at each trigger.
    fn triggered(&mut self, format: &Object, depth: usize) -> Result<String> {
        let names = [
            "type",
            "triggers",
            "tags",
            "at_least_one",
            "stop_after_first",
        ];
        no_other(format, &names)?;
        let (triggers, tags) = (strings(format, "triggers")?, list(format, "tags")?);
        let (mut items, mut whole, mut used) = (Vec::new(), Vec::new(), 0);
        for trigger in &triggers {
            if trigger.is_empty() {
                return Err(invalid("a trigger must not be empty"));
            }
            let mut rests = Vec::new();
            for tag in tags {
                let tag = object(tag)?;
                if string(tag, "begin")?.starts_with(trigger) {
                    rests.push(self.tag(tag, trigger, depth)?);
                }
            }
            used += rests.len();
            if !rests.is_empty() {
                let text = self.until(&[trigger])?;
                items.push(format!("({text} ({}))", rests.join(" | ")));
                let literal = self.literal(trigger);
                whole.push(format!("({literal} ({}))", rests.join(" | ")));
            }
        }
        if used < tags.len() || items.is_empty() {
            return Err(invalid("every tag must begin with one of the triggers"));
        }
        let item = self.rule("", &items.join(" | "));
        let plain: Vec<&str> = triggers
            .iter()
            .filter(|t| self.special_id(t).is_none())
            .copied()
            .collect();
        let text = match plain.is_empty() {
            true => self.terminal(TEXT),
            false => {
                let any = alternatives(&plain);
                self.terminal(&format!(r"{TEXT} & ~/(.|\n)*({any})(.|\n)*/"))
            }
        };
        Ok(
            match (
                flag(format, "at_least_one")?,
                flag(format, "stop_after_first")?,
            ) {
                (false, false) => format!("({item}* {text})"),
                (false, true) => format!("({item} | {text})"),
                (true, false) => format!("(({}) {item}* {text})", whole.join(" | ")),
                (true, true) => format!("({})", whole.join(" | ")),
            },
        )
    }

    fn separated(&mut self, format: &Object, depth: usize) -> Result<String> {
        let names = [
            "type",
            "tags",
            "separator",
            "at_least_one",
            "stop_after_first",
        ];
        no_other(format, &names)?;
        let mut tags = Vec::new();
        for tag in list(format, "tags")? {
            tags.push(self.tag(object(tag)?, "", depth)?);
        }
        if tags.is_empty() {
            return Err(invalid("tags must not be empty"));
        }
        let tag = self.rule("", &tags.join(" | "));
        let separator = self.literal(string(format, "separator")?);
        let tags = match flag(format, "stop_after_first")? {
            true => tag,
            false => format!("({tag} ({separator} {tag})*)"),
        };
        Ok(match flag(format, "at_least_one")? {
            true => tags,
            false => format!("({tags})?"),
        })
    }

    /// A text as a sequence of strings and special tokens.
    fn literal(&self, text: &str) -> String {
        let (mut out, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(first) = rest.chars().next() {
            let found = self
                .special
                .iter()
                .find(|(t, _)| rest.starts_with(t.as_str()));
            if let Some((token, id)) = found {
                if !plain.is_empty() {
                    out.push(lark::literal(&std::mem::take(&mut plain)));
                }
                out.push(format!("<[{id}]>"));
                rest = &rest[token.len()..];
            } else {
                plain.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        if !plain.is_empty() || out.is_empty() {
            out.push(lark::literal(&plain));
        }
        out.join(" ")
    }

    /// Id of the special token with the text `text`.
    fn special_id(&self, text: &str) -> Option<u32> {
        self.special
            .iter()
            .find(|(t, _)| t == text)
            .map(|(_, id)| *id)
    }
}

/// A regular expression that matches one of `texts`.
fn alternatives(texts: &[&str]) -> String {
    let escaped: Vec<String> = texts.iter().map(|text| lark::escaped(text)).collect();
    escaped.join("|")
}

fn object(value: &Value) -> Result<&Object> {
    let wrong = || mistyped("a format or a tag", "an object", Some(value));
    value.as_object().ok_or_else(wrong)
}

fn string<'a>(object: &'a Object, name: &str) -> Result<&'a str> {
    let value = object.get(name);
    let text = value.and_then(Value::as_str);
    text.ok_or_else(|| mistyped(name, "a string", value))
}

fn list<'a>(object: &'a Object, name: &str) -> Result<&'a [Value]> {
    let value = object.get(name);
    let items = value.and_then(Value::as_array).map(Vec::as_slice);
    items.ok_or_else(|| mistyped(name, "a list", value))
}

fn strings<'a>(object: &'a Object, name: &str) -> Result<Vec<&'a str>> {
    let wrong = || mistyped(name, "a list of strings", object.get(name));
    let items = list(object, name)?.iter();
    items.map(|item| item.as_str().ok_or_else(wrong)).collect()
}

fn flag(object: &Object, name: &str) -> Result<bool> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        other => Err(mistyped(name, "true or false", other)),
    }
}

/// Refuses unknown members, which would add constraints.
fn no_other(object: &Object, known: &[&str]) -> Result<()> {
    let other = object.iter().find(|(name, value)| {
        let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        !known.contains(&name.as_str()) && !empty
    });
    match other {
        Some((name, _)) => Err(GrammarError::Invalid(format!(
            "{name:.40} is not supported"
        ))),
        None => Ok(()),
    }
}

/// Error about a member that is missing or of a kind other than `expected`.
fn mistyped(name: &str, expected: &str, found: Option<&Value>) -> GrammarError {
    let found = found.map_or_else(|| "nothing".to_owned(), excerpt);
    GrammarError::Invalid(format!("{name} must be {expected}, got {found}"))
}

fn invalid(reason: &str) -> GrammarError {
    GrammarError::invalid(reason)
}
