//! Event streams byte for byte. `tests/e2e/test_protocols.py` reads the same files with the types
//! of the protocols' own client libraries.

use std::path::Path;

use bytes::BytesMut;
use penstock_api_types::{
    ApiError, FinishReason, MessageWriter, ResponseWriter, ResponsesRequest, TokenLogprob,
    TopLogprob, Usage,
};

const USAGE: Usage = Usage {
    prompt_tokens: 20,
    completion_tokens: 9,
    cached_tokens: 16,
    cached_by_tier: None,
    reasoning_tokens: 2,
};

fn check(name: &str, out: &BytesMut) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/golden/sse");
    let golden = std::fs::read_to_string(path.join(name)).unwrap_or_default();
    let text = std::str::from_utf8(out).unwrap();
    assert!(golden == text, "tests/golden/sse/{name} is not:\n{text}");
}

fn responses() -> ResponseWriter {
    let body = br#"{"input": "hi", "instructions": "be kind", "metadata": {"a": "b"},
        "reasoning": {"effort": "low"}, "tools": [{"type": "function", "name": "f",
        "parameters": {"type": "object"}, "strict": true}], "temperature": 0.5, "top_p": 1,
        "text": {"verbosity": "low"}}"#;
    let echo = ResponsesRequest::parse(body).unwrap().echo;
    ResponseWriter::new("resp_7".into(), 1_700_000_000, "m".into(), echo)
}

fn scores() -> Vec<TokenLogprob> {
    let (token, bytes) = ("Let".to_owned(), b"Let".to_vec());
    let top = TopLogprob {
        token: token.clone(),
        logprob: -0.5,
        bytes: bytes.clone(),
    };
    vec![TokenLogprob {
        token,
        logprob: -0.5,
        bytes,
        top_logprobs: vec![top],
    }]
}

#[test]
fn a_response() {
    let (mut writer, mut out) = (responses(), BytesMut::new());
    writer.reasoning(&mut out, "Ask ");
    writer.reasoning(&mut out, "f.");
    writer.content(&mut out, "Let", scores());
    writer.content(&mut out, " me \"look\"\n", Vec::new());
    writer.call(&mut out, "call_1", "f");
    writer.arguments(&mut out, "{\"a\":");
    writer.arguments(&mut out, "1}");
    writer.call(&mut out, "call_2", "f");
    writer.arguments(&mut out, "{}");
    writer.finish(&mut out, Some(FinishReason::ToolCalls), &USAGE);
    check("response.sse", &out);
}

#[test]
fn a_response_that_fails() {
    let (mut writer, mut out) = (responses(), BytesMut::new());
    writer.content(&mut out, "Let", Vec::new());
    writer.fail(&mut out, &ApiError::engine_failed("killed by signal 9"));
    check("response_failed.sse", &out);
}

#[test]
fn a_message() {
    let mut writer = MessageWriter::new("msg_7".into(), "m".into());
    let mut out = BytesMut::new();
    writer.start(&mut out, &USAGE);
    writer.reasoning(&mut out, "Ask ");
    writer.reasoning(&mut out, "f.");
    writer.content(&mut out, "Let me \"look\"\n");
    writer.call(&mut out, "call_1", "f");
    writer.arguments(&mut out, "{\"a\":");
    writer.arguments(&mut out, "1}");
    writer.call(&mut out, "call_2", "f");
    let end = writer.end(Some(FinishReason::ToolCalls), None, false);
    writer.finish(&mut out, &end, &USAGE);
    check("message.sse", &out);
}
