//! Texts in llguidance's Lark syntax.

use std::collections::HashSet;

use llguidance::regex_to_lark;

use crate::error::GrammarError;

/// Deepest nesting of brackets in a grammar: llguidance parses them by recursion.
const MAX_DEPTH: usize = 200;

/// Lark of a regular expression that the whole output matches.
pub(crate) fn of_regex(pattern: &str) -> Result<String, GrammarError> {
    let body = unanchored(pattern);
    if body.is_empty() {
        return Ok("start: \"\"".into());
    }
    check_depth(body)?;
    Ok(format!("start: {}", regex(body)))
}

/// A regular expression between slashes.
pub(crate) fn regex(pattern: &str) -> String {
    format!("/{}/", regex_to_lark(pattern, ""))
}

/// The pattern without the anchors that a match of the whole text implies.
pub(crate) fn unanchored(pattern: &str) -> &str {
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    match pattern.strip_suffix('$') {
        Some(body) if !ends_escaped(body) => body,
        _ => pattern,
    }
}

/// Whether what follows `text` is escaped by it.
fn ends_escaped(text: &str) -> bool {
    text.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 1
}

/// Lark of a JSON list of strings.
pub(crate) fn of_choice(text: &str) -> Result<String, GrammarError> {
    let choices: Vec<String> = serde_json::from_str(text)
        .map_err(|e| GrammarError::invalid(format!("choices are a list of strings: {e}")))?;
    let mut seen = HashSet::new();
    let distinct = choices.iter().filter(|choice| seen.insert(*choice));
    let patterns: Vec<String> = distinct.map(|choice| escaped(choice)).collect();
    if patterns.is_empty() {
        return Err(GrammarError::invalid("there is no choice"));
    }
    // As one expression: thousands of rules would be too complex.
    Ok(format!("start: /{}/", patterns.join("|")))
}

/// A regular expression of a text: each character by its number.
pub(crate) fn escaped(text: &str) -> String {
    let hex = |c: char| format!("\\x{{{:x}}}", c as u32);
    text.chars().map(hex).collect()
}

/// A text as a Lark string.
pub(crate) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A Lark text of bounded depth.
pub(crate) fn checked(text: &str) -> Result<String, GrammarError> {
    check_depth(text)?;
    Ok(text.to_owned())
}

/// Brackets in strings count too: it is a bound, not a syntax check.
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
