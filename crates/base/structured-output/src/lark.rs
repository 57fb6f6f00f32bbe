//! Generates and checks texts in llguidance's Lark syntax.

use std::collections::HashSet;
use std::fmt::Write;

use llguidance::regex_to_lark;
use serde_json::Value;

use crate::error::GrammarError;
use crate::schema;

/// Maximum nesting of brackets in a grammar: llguidance's parser is recursive.
const MAX_DEPTH: usize = 200;

/// Lark grammar of a regular expression that matches the whole output.
pub(crate) fn of_regex(pattern: &str) -> Result<String, GrammarError> {
    let body = unanchored(pattern);
    if body.is_empty() {
        return Ok("start: \"\"".into());
    }
    check_depth(body)?;
    Ok(format!("start: {}", regex(body)))
}

/// A regular expression as Lark writes it, between slashes.
pub(crate) fn regex(pattern: &str) -> String {
    format!("/{}/", regex_to_lark(pattern, ""))
}

/// The pattern without anchors at its start and end, which are implied because the whole text must
/// match.
pub(crate) fn unanchored(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    match pattern.strip_suffix('$') {
        Some(body) if !ends_escaped(body) => body,
        _ => pattern,
    }
}

/// Whether `text` ends with an unfinished escape.
fn ends_escaped(text: &str) -> bool {
    text.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 1
}

/// Lark grammar of a JSON list of strings.
pub(crate) fn of_choice(text: &str) -> Result<String, GrammarError> {
    let choices: Vec<String> = serde_json::from_str(text)
        .map_err(|e| GrammarError::invalid(format!("choices must be a list of strings: {e}")))?;
    let mut seen = HashSet::new();
    let distinct = choices.iter().filter(|choice| seen.insert(*choice));
    let patterns: Vec<String> = distinct.map(|choice| escaped(choice)).collect();
    if patterns.is_empty() {
        return Err(GrammarError::invalid("there is no choice"));
    }
    // One expression, because thousands of separate rules would be too complex.
    Ok(format!("start: /{}/", patterns.join("|")))
}

/// A regular expression that matches a text, with each character as its code point.
pub(crate) fn escaped(text: &str) -> String {
    let hex = |c: char| format!("\\x{{{:x}}}", c as u32);
    text.chars().map(hex).collect()
}

/// A text as a Lark string.
pub(crate) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Checks the nesting of brackets in a Lark grammar and prepares its embedded schemas.
pub(crate) fn checked(text: &str) -> Result<String, GrammarError> {
    const SCHEMA: &str = "%json";
    check_depth(text)?;
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    while at < text.len() {
        let rest = &text[at..];
        let schema = rest.strip_prefix(SCHEMA).and_then(|rest| {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let value = values.next()?.ok()?;
            Some((value, SCHEMA.len() + values.byte_offset()))
        });
        if let Some((value, length)) = schema {
            let _ = write!(out, "{SCHEMA} {}", schema::prepared(&value)?);
            at += length;
        } else {
            let length = unit(rest);
            out.push_str(&rest[..length]);
            at += length;
        }
    }
    Ok(out)
}

/// Length in bytes of the comment, string, expression or special token at the start of a text, in
/// which `%json` has no meaning; otherwise of its first character.
fn unit(text: &str) -> usize {
    let quoted = |quote: char| {
        let mut escaped = false;
        let end = text.char_indices().skip(1).find(|&(_, c)| {
            let ends = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        end.map(|(at, c)| at + c.len_utf8())
    };
    let first = text.chars().next().map_or(0, char::len_utf8);
    let length = match text.as_bytes() {
        [b'#', ..] | [b'/', b'/', ..] => Some(text.find('\n').unwrap_or(text.len())),
        [b'"', ..] => quoted('"'),
        [b'/', ..] => quoted('/'),
        [b'<', ..] => {
            let end = text[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace());
            let end = end.map(|end| end + 1);
            end.filter(|&end| end > 1 && text[end..].starts_with('>'))
        }
        _ => None,
    };
    length.unwrap_or(first).max(first)
}

/// Brackets in strings count too: this is a bound, not a syntax check.
fn check_depth(text: &str) -> Result<(), GrammarError> {
    let mut depth = 0usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            let reason = format!("brackets are nested deeper than {MAX_DEPTH}");
            return Err(GrammarError::Invalid(reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_in_a_grammar_are_checked_and_texts_that_look_like_one_are_not() {
        let bomb = "%json {\"multipleOf\": 99999989}";
        for text in [
            format!("start: {bomb}"),
            format!("start: </a> a\na: {bomb}"),
            format!("start: /\\/\"/ \"/\" a // \"\na:{bomb}"),
            "start: %json{\"x-guidance\": {\"lenient\": true}}".to_owned(),
        ] {
            assert!(checked(&text).is_err(), "{text}");
        }
        let escaped = bomb.replace('"', "\\\"");
        for text in [
            format!("start: \"{escaped}\""),
            format!("start: \"a\" // {bomb}"),
            format!("start: \"a\" # {bomb}"),
            "start: \"é\" /[\"é]/ <tool>".to_owned(),
        ] {
            assert_eq!(checked(&text).as_ref(), Ok(&text));
        }
        let schema = checked("start: %json {\"type\":\"null\"} \"x\"").unwrap();
        assert!(
            schema.starts_with("start: %json {\"type\":\"null\",\"x-guidance\""),
            "{schema}"
        );
        assert!(schema.ends_with("} \"x\""), "{schema}");
    }

    #[test]
    fn anchors_are_taken_off_unless_escaped() {
        for (pattern, body) in [
            ("^a$", "a"),
            ("a", "a"),
            (r"a\$", r"a\$"),
            (r"a\\$", r"a\\"),
            ("^$", ""),
        ] {
            assert_eq!(unanchored(pattern), body);
        }
    }
}
