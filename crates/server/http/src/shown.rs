//! Sanitizes external text for errors and the log.

/// Upper bound on the shown characters of a URL.
const MOST: usize = 200;

/// Redacts user, password and query of a URL and truncates it. Malformed URLs are accepted:
/// everything in the place of a password is removed.
pub fn shown_url(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(is_of_scheme) => (Some(scheme), rest),
        _ => (None, url),
    };
    let bare = |text: &str| {
        let bare = text.split(['?', '#']).next();
        bare.unwrap_or_default().to_owned()
    };
    // the password first, because it may contain a `?`
    let rest = match rest.rsplit_once('@') {
        Some((_, rest)) => format!("...@{}", bare(rest)),
        None => bare(rest),
    };
    let whole = match scheme {
        Some(scheme) => format!("{scheme}://{rest}"),
        None => rest,
    };
    shortened(&whole, MOST)
}

fn is_of_scheme(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

/// Truncates a text to `most` characters, with a note of its full size.
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}... ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

/// Escapes control characters, so that the text fits on one log line.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stays_as_it_is_but_for_control_characters() {
        assert_eq!(
            one_line("'Bearer \"KEY\"' é 日本"),
            "'Bearer \"KEY\"' é 日本"
        );
        assert_eq!(
            one_line("a\nb\u{1b}[0m\u{2028}"),
            "a\\nb\\u{1b}[0m\\u{2028}"
        );
    }

    #[test]
    fn passwords_are_not_shown() {
        for (url, wanted) in [
            ("http://a:8000/x", "http://a:8000/x"),
            ("http://user:hush@a:1", "http://...@a:1"),
            ("http://u:hu/sh@a b", "http://...@a b"),
            ("u:hush@a", "...@a"),
            ("http://a?token=hush", "http://a"),
            ("a:8000", "a:8000"),
            ("http://user:pa#ss@host", "http://...@host"),
            (
                "http://user:pa?s@s@host:1/x?token=hush",
                "http://...@host:1/x",
            ),
            ("user:pa?s://s@host", "...@host"),
            ("a?next=http://b", "a"),
        ] {
            assert_eq!(shown_url(url), wanted);
        }
        let long = shown_url(&"ä".repeat(1 << 20));
        assert!(long.starts_with("ää") && long.len() < 500, "{long}");
    }
}
