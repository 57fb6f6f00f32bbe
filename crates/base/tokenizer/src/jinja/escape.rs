//! Escaping for HTML and URLs. Chat templates rarely use more than `| safe`.

use std::sync::Arc;

use super::error::Error;
use super::output::{Output, Steps};
use super::value::Value;

/// `escape(value)`: markup is returned unchanged; special characters in text become entities.
pub(super) fn escaped(value: &Value, steps: &Steps) -> Result<Arc<str>, Error> {
    match value {
        Value::Markup(text) => Ok(text.clone()),
        other => escaped_text(&other.text(steps)?, steps),
    }
}

pub(super) fn escaped_text(text: &str, steps: &Steps) -> Result<Arc<str>, Error> {
    let mut out = Output::new(steps);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;")?,
            '<' => out.push_str("&lt;")?,
            '>' => out.push_str("&gt;")?,
            '\'' => out.push_str("&#39;")?,
            '"' => out.push_str("&#34;")?,
            other => out.push(other)?,
        }
    }
    Ok(out.into_text().into())
}

/// Text without tags and comments, with single spaces.
pub(super) fn without_tags(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let inside = &rest[start..];
        let end = match inside.strip_prefix("<!--") {
            Some(comment) => comment.find("-->").map(|at| at + 7),
            None => inside.find('>').map(|at| at + 1),
        };
        let Some(end) = end else { break };
        out.push_str(&rest[..start]);
        rest = &inside[end..];
    }
    out.push_str(rest);
    let mut joined = String::new();
    for word in out.split(super::text::is_space) {
        if !joined.is_empty() && !word.is_empty() {
            joined.push(' ');
        }
        joined.push_str(word);
    }
    let signs = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#39;", "'"),
        ("&#34;", "\""),
        ("&quot;", "\""),
        ("&amp;", "&"),
    ];
    signs
        .into_iter()
        .fold(joined, |text, (name, sign)| text.replace(name, sign))
}

/// Writes `urlencode` of a text. In a query a space becomes `+`; in a path `/` is kept.
pub(super) fn url_quote(text: &str, is_query: bool, out: &mut Output<'_>) -> Result<(), Error> {
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte);
        match byte {
            b'/' if !is_query => out.push('/')?,
            b' ' if is_query => out.push('+')?,
            byte if plain => out.push(byte as char)?,
            byte => out.push_str(&format!("%{byte:02X}"))?,
        }
    }
    Ok(())
}
