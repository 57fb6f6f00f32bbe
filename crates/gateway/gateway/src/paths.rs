//! Checks of request paths. A path is forwarded unchanged. A path is rejected if a replica or an
//! intermediate proxy might normalize it to a different path: that would bypass the checks of the
//! path and of the API key.

use penstock_api_types::ApiError;

/// Endpoints that take POST requests with a body of text. Each has a label of its own in the
/// request metrics; all other paths of `/v1` share one.
pub(crate) const TEXT: [&str; 13] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/rerank",
    "/score",
    "/pooling",
    "/tokenize",
    "/detokenize",
];

/// Path of a model. Model names contain slashes, which clients percent-encode.
const MODELS: &str = "/v1/models/";

/// Checks a path without its query.
///
/// # Errors
/// 400: the path has an empty or dot segment, an encoded slash, letter or control character, or a
/// path parameter.
pub(crate) fn check_path(path: &str) -> Result<(), ApiError> {
    let plain = match path.strip_prefix(MODELS) {
        Some(name) => decoded(name).is_some_and(|name| is_plain(&name)),
        None => {
            let rest = path.strip_prefix('/');
            rest.is_some_and(|rest| is_plain(rest) && encodes_little(rest))
        }
    };
    plain.then_some(()).ok_or_else(|| {
        ApiError::bad_request(
            "The path has an empty or a dot segment, an encoded slash or letter, or a parameter. \
             Replicas may read it as another path: write it plainly.",
        )
    })
}

/// Whether the path has no empty or dot segments (the last segment may be empty), and no characters
/// that some servers remove.
fn is_plain(path: &str) -> bool {
    let mut segments = path.split('/').rev();
    let dots = |segment: &str| matches!(segment, "." | "..");
    let last = segments.next().unwrap_or_default();
    !dots(last)
        && segments.all(|segment| !segment.is_empty() && !dots(segment))
        && !path
            .bytes()
            .any(|byte| matches!(byte, b'\\' | b';') || byte.is_ascii_control())
}

/// Whether percent-encoding is used only for characters that require it.
fn encodes_little(path: &str) -> bool {
    let mut parts = path.split('%');
    parts.next();
    parts.all(|part| {
        let byte = part
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        byte.is_some_and(|byte| {
            !(byte.is_ascii_alphanumeric()
                || byte.is_ascii_control()
                || matches!(byte, b'/' | b'\\' | b'%' | b';' | b'-' | b'.' | b'_' | b'~'))
        })
    })
}

/// Percent-decodes; `None` if the encoding is invalid.
fn decoded(path: &str) -> Option<String> {
    let mut parts = path.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let hex = part
            .get(..2)
            .filter(|hex| hex.bytes().all(|one| one.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_read_as_another_path_is_refused() {
        for good in [
            "/v1/chat/completions",
            "/v1/responses/resp_1-2.3~4",
            "/v1/files/a%20b%C3%A9",
            "/v1/x/",
            "/v1/models/org%2Fname",
            "/v1/models/a:b",
            "/tokenize",
        ] {
            assert!(check_path(good).is_ok(), "{good}");
        }
        for wrong in [
            "/v1/../kv",
            "/v1/./x",
            "/v1/x/..",
            "/v1/%2e%2e/kv",
            "/v1/.%2E/kv",
            "/v1/%6bv/x",
            "/v1//kv/x",
            "//v1/x",
            "/v1/x%2f..%2fkv",
            "/v1/x%5c..",
            "/v1/x\\..\\kv",
            "/v1/..;/kv",
            "/v1/kv;x",
            "/v1/%252e%252e/kv",
            "/v1/x%00",
            "/v1/x%0a",
            "/v1/x%",
            "/v1/x%4",
            "/v1/x%zz",
            "/v1/x%+1",
            "/v1/models/..%2F..%2Fv1%2Fkv",
            "/v1/models/%2e%2e/kv",
            "/v1/models/a%2F%2Fb",
            "v1/x",
            "",
        ] {
            assert!(check_path(wrong).is_err(), "{wrong}");
        }
    }
}
