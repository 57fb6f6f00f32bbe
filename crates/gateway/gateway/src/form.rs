//! Multipart forms (RFC 7578), used to upload files to audio and image models: finds the part that
//! names the model.

use std::ops::Range;

use axum::http::{HeaderMap, header};
use memchr::memmem;

/// Maximum size of a part's headers in bytes.
const MOST_HEAD: usize = 8 << 10;

/// Why a form cannot be routed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormError {
    #[error("The request body is not a whole form (byte {at}).")]
    Malformed { at: usize },
    #[error("The request body has two parts \"model\".")]
    Twice,
}

/// The boundary of a multipart form; `None` if the content type is not one.
pub(crate) fn boundary(headers: &HeaderMap) -> Option<String> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let (kind, parameters) = kind.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameter(parameters, "boundary").filter(|boundary| !boundary.is_empty())
}

/// The value of `name` in `a=b; name="value"`.
fn parameter(parameters: &str, name: &str) -> Option<String> {
    let mut all = parameters.split(';').filter_map(|one| one.split_once('='));
    let (_, value) = all.find(|(key, _)| key.trim().eq_ignore_ascii_case(name))?;
    let value = value.trim();
    let quoted = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    Some(quoted.unwrap_or(value).to_owned())
}

/// Byte range of the value of the part `model`; `None` if the form lacks it.
///
/// # Errors
/// The form is truncated, or has two parts `model`: a replica might read the other part.
pub(crate) fn model(body: &[u8], boundary: &str) -> Result<Option<Range<usize>>, FormError> {
    let delimiter = format!("\r\n--{boundary}");
    let finder = memmem::Finder::new(delimiter.as_bytes());
    let malformed = |at: usize| FormError::Malformed { at };
    // the first delimiter has no preceding line break, later ones have
    let mut at = match body.starts_with(&delimiter.as_bytes()[2..]) {
        true => delimiter.len() - 2,
        false => finder.find(body).ok_or(malformed(0))? + delimiter.len(),
    };
    let mut found = None;
    loop {
        let rest = &body[at..];
        if rest.starts_with(b"--") {
            return Ok(found);
        }
        let line = memmem::find(rest, b"\r\n").ok_or(malformed(at))?;
        let near = &rest[line..rest.len().min(line + MOST_HEAD)];
        let head = memmem::find(near, b"\r\n\r\n").ok_or(malformed(at))?;
        let value = at + line + head + 4;
        // an empty value has no line break of its own before the next delimiter; the search
        // therefore starts at the line break of the headers
        let length = finder.find(&body[value - 2..]).ok_or(malformed(value))?;
        let end = (value - 2 + length).max(value);
        if is_model(&near[..head]) && found.replace(value..end).is_some() {
            return Err(FormError::Twice);
        }
        at = value - 2 + length + delimiter.len();
    }
}

/// Whether `head` has the headers of the part `model`.
fn is_model(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let disposition = lines.find(|(name, _)| {
        let name = name.trim();
        name.eq_ignore_ascii_case("content-disposition")
    });
    disposition
        .and_then(|(_, value)| parameter(value.split_once(';')?.1, "name"))
        .is_some_and(|name| name == "model")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(head: &str, value: &str) -> String {
        format!("--xYz\r\n{head}\r\n\r\n{value}\r\n")
    }

    fn found(body: &str) -> Result<Option<&str>, FormError> {
        model(body.as_bytes(), "xYz").map(|place| place.map(|place| &body[place]))
    }

    #[test]
    fn the_model_of_a_form_is_found() {
        let file = part(
            "Content-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\
             Content-Type: audio/wav",
            "RIFF\r\n--xY\r\nname=\"model\"\r\n\r\nno",
        );
        let named = part(
            "content-disposition: form-data; name=\"model\"",
            "whisper-1",
        );
        let bare = part("Content-Disposition: form-data; name=model", "m/x");
        let empty = part("Content-Disposition: form-data; name=\"prompt\"", "");
        for (parts, wanted) in [
            (format!("{file}{named}"), Some("whisper-1")),
            (format!("{empty}{bare}{file}"), Some("m/x")),
            (file.clone(), None),
            (empty.clone(), None),
            (format!("preamble\r\n{named}"), Some("whisper-1")),
        ] {
            let body = format!("{parts}--xYz--\r\n");
            assert_eq!(found(&body), Ok(wanted), "{body}");
        }
        let twice = format!("{named}{file}{bare}--xYz--");
        assert_eq!(found(&twice), Err(FormError::Twice));
        for cut in [0, 3, 20, 60, named.len()] {
            assert!(found(&named[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_boundary_is_a_parameter_of_the_type() {
        let of = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            boundary(&headers)
        };
        let plain = of("multipart/form-data; boundary=a-b");
        assert_eq!(plain.as_deref(), Some("a-b"));
        let quoted = of("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\"");
        assert_eq!(quoted.as_deref(), Some("a b"));
        for other in [
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
