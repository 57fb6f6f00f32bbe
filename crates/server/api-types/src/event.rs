//! Events with a name, as OpenAI's Responses and Anthropic's Messages stream them: `event: NAME`,
//! and the name again as the `type` of the data.

use bytes::{BufMut, BytesMut};
use serde::Serialize;

/// Appends an event. `body` must serialise as an object; the event adds `type` as its first member.
pub(crate) fn named(out: &mut BytesMut, name: &str, body: &impl Serialize) {
    for piece in ["event: ", name, "\ndata: {\"type\":\"", name, "\""] {
        out.extend_from_slice(piece.as_bytes());
    }
    let start = out.len();
    // Cannot fail: plain data with string keys, written to memory.
    let written = serde_json::to_writer(out.writer(), body);
    debug_assert!(written.is_ok(), "plain data serialises: {written:?}");
    if out[start..].starts_with(b"{}") {
        out.truncate(start);
        out.extend_from_slice(b"}");
    } else if let Some(brace) = out.get_mut(start) {
        *brace = b',';
    }
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_comes_first() {
        let mut out = BytesMut::new();
        named(&mut out, "a.b", &serde_json::json!({"x": [1]}));
        named(&mut out, "stop", &serde_json::json!({}));
        assert_eq!(
            String::from_utf8_lossy(&out),
            "event: a.b\ndata: {\"type\":\"a.b\",\"x\":[1]}\n\n\
             event: stop\ndata: {\"type\":\"stop\"}\n\n"
        );
    }
}
