//! Requests of all endpoints, damaged: each is read, or refused with a status of the client's fault
//! and a short message. PROPTEST_CASES makes a long run of it.

use penstock_api_types::{
    ApiError, ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, KvRequest,
    MessagesRequest, RerankRequest, ResponsesRequest, ScoreRequest, TokenizeRequest,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

type Parse = fn(&[u8]) -> Result<(), ApiError>;

/// Every endpoint, with a request that it takes and that has all shapes it knows. Fuzzing starts
/// from the same requests.
fn endpoints() -> Vec<(Parse, Value)> {
    let mut bodies: Value = serde_json::from_str(include_str!("../bodies.json")).unwrap();
    let parsers: [(&str, Parse); 10] = [
        ("chat", |body| ChatRequest::parse(body).map(drop)),
        ("completion", |body| {
            CompletionRequest::parse(body).map(drop)
        }),
        ("responses", |body| ResponsesRequest::parse(body).map(drop)),
        ("messages", |body| MessagesRequest::parse(body).map(drop)),
        ("tokenize", |body| TokenizeRequest::parse(body).map(drop)),
        ("detokenize", |body| {
            DetokenizeRequest::parse(body).map(drop)
        }),
        ("embedding", |body| EmbeddingRequest::parse(body).map(drop)),
        ("rerank", |body| RerankRequest::parse(body).map(drop)),
        ("score", |body| ScoreRequest::parse(body).map(drop)),
        ("kv", |body| KvRequest::parse(body).map(drop)),
    ];
    parsers
        .map(|(name, parse)| (parse, bodies[name].take()))
        .to_vec()
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
