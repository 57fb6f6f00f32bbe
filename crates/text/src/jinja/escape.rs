//! HTML, of which chat templates use little more than `| safe`.

use std::sync::Arc;

use super::error::Error;
use super::value::Value;

/// `escape(value)`: markup as it is, text with its signs written out.
pub(super) fn escaped(value: &Value) -> Result<Arc<str>, Error> {
    Ok(match value {
        Value::Markup(text) => text.clone(),
        other => escaped_text(&other.text()?).into(),
    })
}

pub(super) fn escaped_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            other => out.push(other),
        }
    }
    out
}

/// Text without tags and comments, and with single spaces.
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
    let words: Vec<&str> = out
        .split(super::text::is_space)
        .filter(|word| !word.is_empty())
        .collect();
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
        .fold(words.join(" "), |text, (name, sign)| {
            text.replace(name, sign)
        })
}

/// `urlencode` of a text, which leaves `/`.
pub(super) fn url_quoted(text: &str, slash: bool) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"_.-~".contains(&byte);
        if plain || slash && byte == b'/' {
            out.push(byte as char);
        } else {
            _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
