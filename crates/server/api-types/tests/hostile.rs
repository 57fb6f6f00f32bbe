//! Requests of all endpoints, damaged: each is read, or refused with a status of the client's fault
//! and a short message. PROPTEST_CASES makes a long run of it.

#![allow(clippy::unwrap_used)]

use penstock_api_types::{
    ApiError, ChatRequest, CompletionRequest, DetokenizeRequest, KvRequest, MessagesRequest,
    ResponsesRequest, TokenizeRequest,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

type Parse = fn(&[u8]) -> Result<(), ApiError>;

/// Every endpoint, with a request that it takes and that has all shapes it knows.
fn endpoints() -> Vec<(Parse, Value)> {
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        "strict": true}});
    let call = json!({"id": "c1", "type": "function",
        "function": {"name": "f", "arguments": "{\"a\": \"x\"}"}});
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    vec![
        (
            |body| ChatRequest::parse(body).map(drop),
            json!({
                "model": "m", "stream": true, "stream_options": {"include_usage": true},
                "messages": [
                    {"role": "system", "content": "s"},
                    {"role": "user", "content": [{"type": "text", "text": "t"}], "name": "u"},
                    {"role": "assistant", "content": null, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": "r"},
                ],
                "tools": [tool], "tool_choice": "auto", "parallel_tool_calls": false,
                "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1,
                "n": 2, "seed": 7, "stop": ["a", "b"], "logprobs": true, "top_logprobs": 3,
                "logit_bias": {"5": 1.5}, "presence_penalty": 0.5, "frequency_penalty": -0.5,
                "stop_token_ids": [1], "bad_words": ["w"], "allowed_token_ids": [1, 2],
                "response_format": {"type": "text"}, "chat_template_kwargs": {"x": true},
            }),
        ),
        (
            |body| CompletionRequest::parse(body).map(drop),
            json!({
                "model": "m", "prompt": ["a", "b"], "echo": true, "logprobs": 2, "n": 1,
                "max_tokens": 0, "stop": "x", "truncate_prompt_tokens": 5, "ignore_eos": true,
                "cache_salt": "s",
            }),
        ),
        (
            |body| ResponsesRequest::parse(body).map(drop),
            json!({
                "model": "m", "instructions": "i", "stream": true, "store": false,
                "input": [
                    {"type": "message", "role": "user",
                     "content": [{"type": "input_text", "text": "t"}]},
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "o"},
                    {"type": "reasoning", "summary": [], "content": []},
                ],
                "tools": [{"type": "function", "name": "f", "parameters": schema}],
                "tool_choice": "auto", "max_output_tokens": 5, "reasoning": {"effort": "low"},
                "text": {"format": {"type": "text"}}, "include": [], "metadata": {"k": "v"},
            }),
        ),
        (
            |body| MessagesRequest::parse(body).map(drop),
            json!({
                "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s"}],
                "messages": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "c", "content": "r"}]},
                ],
                "tools": [{"name": "f", "input_schema": schema}],
                "tool_choice": {"type": "auto"}, "stop_sequences": ["x"], "top_k": 3,
                "thinking": {"type": "disabled"}, "stream": false,
            }),
        ),
        (
            |body| TokenizeRequest::parse(body).map(drop),
            json!({"messages": [{"role": "user", "content": "q"}], "add_generation_prompt": true}),
        ),
        (
            |body| DetokenizeRequest::parse(body).map(drop),
            json!({"tokens": [1, 2]}),
        ),
        (
            |body| KvRequest::parse(body).map(drop),
            json!({"prompt": "x", "cache_salt": "s"}),
        ),
    ]
}

/// Values that parsers stumble over.
fn odd() -> impl Strategy<Value = Value> {
    let numbers = select(vec![
        json!(0),
        json!(-1),
        json!(f64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.1),
        json!(5.0),
    ]);
    let texts = select(vec![
        "",
        "5",
        "NaN",
        "\u{0}",
        "😀\u{202e}",
        "function",
        "auto",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        numbers,
        texts.prop_map(Value::from),
        (0_usize..3000).prop_map(|length| "x".repeat(length).into()),
    ];
    leaf.prop_recursive(4, 60, 8, |inner| {
        let names = select(vec![
            "type", "name", "content", "role", "function", "text", "é",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::vec((names, inner), 0..5).prop_map(|members| {
                let members = members.into_iter();
                Value::Object(members.map(|(k, v)| (k.to_owned(), v)).collect())
            }),
        ]
    })
}

#[derive(Debug, Clone)]
enum Damage {
    Replace(Index, Value),
    Remove(Index),
    /// One node takes the place of another.
    Move(Index, Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Index>(), odd()).prop_map(|(at, value)| Damage::Replace(at, value)),
        any::<Index>().prop_map(Damage::Remove),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Damage::Move(from, to)),
    ]
}

/// Paths of all nodes but the root.
fn nodes(value: &Value, at: &str, found: &mut Vec<String>) {
    let mut child = |key: &str, value: &Value| {
        let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        found.push(path.clone());
        nodes(value, &path, found);
    };
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(i, item)| child(&i.to_string(), item)),
        Value::Object(map) => map.iter().for_each(|(key, item)| child(key, item)),
        _ => {}
    }
}

fn damaged(mut request: Value, damage: Damage) -> Value {
    let mut paths = Vec::new();
    nodes(&request, "", &mut paths);
    if paths.is_empty() {
        return request;
    }
    match damage {
        Damage::Replace(at, value) => {
            *request.pointer_mut(at.get(&paths).as_str()).unwrap() = value
        }
        Damage::Move(from, to) => {
            let value = request.pointer(from.get(&paths).as_str()).unwrap().clone();
            *request.pointer_mut(to.get(&paths).as_str()).unwrap() = value;
        }
        Damage::Remove(at) => {
            let (parent, key) = at.get(&paths).as_str().rsplit_once('/').unwrap();
            match request.pointer_mut(parent).unwrap() {
                Value::Object(map) => drop(map.remove(&key.replace("~1", "/").replace("~0", "~"))),
                Value::Array(items) => drop(items.remove(key.parse().unwrap())),
                _ => unreachable!("only these have children"),
            }
        }
    }
    request
}

fn check(parse: Parse, body: &[u8]) -> Result<(), TestCaseError> {
    if let Err(error) = parse(body) {
        prop_assert!(matches!(error.status, 400 | 404 | 413), "{error:?}");
        prop_assert!(
            !error.message.is_empty() && error.message.len() <= 1003,
            "{error:?}"
        );
        let json: Value = serde_json::from_slice(&error.to_json()).unwrap();
        prop_assert!(json["error"]["message"].is_string());
    }
    Ok(())
}

#[test]
fn undamaged_requests_are_taken() {
    for (parse, request) in endpoints() {
        parse(request.to_string().as_bytes()).unwrap();
    }
}

proptest! {
    #[test]
    fn damaged_requests_are_read_or_refused(
        which in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..6),
    ) {
        let endpoints = endpoints();
        let (parse, request) = which.get(&endpoints);
        let request = damages.into_iter().fold(request.clone(), damaged);
        check(*parse, request.to_string().as_bytes())?;
    }

    #[test]
    fn damaged_bytes_are_read_or_refused(
        which in any::<Index>(),
        edits in prop::collection::vec((any::<Index>(), any::<u8>(), 0_usize..3), 1..8),
    ) {
        let endpoints = endpoints();
        let (parse, request) = which.get(&endpoints);
        let mut body = request.to_string().into_bytes();
        for (at, byte, kind) in edits {
            let at = at.index(body.len());
            match kind {
                0 => body[at] = byte,
                1 => body.insert(at, byte),
                _ => body.truncate(at.max(1)),
            }
        }
        check(*parse, &body)?;
    }

    #[test]
    fn any_bytes_are_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
        for (parse, _) in endpoints() {
            check(parse, &body)?;
        }
    }
}
