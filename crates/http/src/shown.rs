//! What errors and the log show of what others wrote.

/// Characters of a URL.
const MOST: usize = 200;

/// A URL without user, password and query, and not more of it than a line holds. It need not be
/// one: what stands where a password would is left out.
pub fn shown_url(url: &str) -> String {
    let bare = url.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = match bare.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, bare),
    };
    let rest = match rest.rsplit_once('@') {
        Some((_, rest)) => format!("...@{rest}"),
        None => rest.to_owned(),
    };
    let whole = match scheme {
        Some(scheme) => format!("{scheme}://{rest}"),
        None => rest,
    };
    shortened(&whole, MOST)
}

/// The beginning of a text, with a note of what is missing.
pub fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}... ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (url, wanted) in [
            ("http://a:8000/x", "http://a:8000/x"),
            ("http://user:hush@a:1", "http://...@a:1"),
            ("http://u:hu/sh@a b", "http://...@a b"),
            ("u:hush@a", "...@a"),
            ("http://a?token=hush", "http://a"),
            ("a:8000", "a:8000"),
        ] {
            assert_eq!(shown_url(url), wanted);
        }
        let long = shown_url(&"ä".repeat(1 << 20));
        assert!(long.starts_with("ää") && long.len() < 500, "{long}");
    }
}
