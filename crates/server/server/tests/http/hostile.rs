//! Hostile requests.

use std::time::Duration;

use penstock_engine_client::testing::{Script, tokens};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{exchange, rest};
use crate::door::Door;

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..40).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        Just(json!("text")),
        Just(json!([1, 2])),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("role|content|type|text|[a-z]{1,3}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

const FIELDS: &[&str] = &[
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stop_token_ids",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "return_tokens_as_token_ids",
    "echo",
    "n",
    "logit_bias",
    "tools",
    "response_format",
    "min_tokens",
    "ignore_eos",
    "cache_salt",
    "add_special_tokens",
    "chat_template_kwargs",
    "tokens",
    "return_token_ids",
    "add_generation_prompt",
    "suffix",
    "user",
    "min_p",
    "allowed_token_ids",
    "bad_words",
    "presence_penalty",
    "repetition_penalty",
    "include_stop_str_in_output",
    "truncate_prompt_tokens",
    "reasoning_effort",
    "skip_special_tokens",
];

/// A body that has what its endpoint needs, and up to four fields with anything in them.
fn any_body() -> impl Strategy<Value = Value> {
    let strange = prop::collection::vec((prop::sample::select(FIELDS), any_json()), 0..4);
    strange.prop_map(|fields| {
        let mut body = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}],
                              "tokens": [1],
                              "max_tokens": 2});
        for (name, value) in fields {
            body[name] = value;
        }
        body
    })
}

#[tokio::test]
async fn no_request_body_is_the_servers_fault() {
    let door = Door::open_with(
        json!({}),
        Script::new(|_| tokens(&[97, 98], Duration::ZERO)),
    )
    .await;
    let mut runner = TestRunner::default();
    let mut accepted = 0;
    for round in 0..600 {
        let body = any_body().new_tree(&mut runner).unwrap().current();
        let path = [
            "/v1/completions",
            "/v1/chat/completions",
            "/tokenize",
            "/detokenize",
        ][round % 4];
        let reply = door.post(path, &body).await;
        assert!(
            matches!(reply.status, 200 | 400 | 404),
            "{} {path} {body}: {}",
            reply.status,
            reply.text()
        );
        // Several choices with scores are longer than an error may be.
        let most = if reply.status == 200 { 30_000 } else { 3_000 };
        assert!(
            reply.body.len() < most,
            "{} {path} {body}: an answer of {} bytes",
            reply.status,
            reply.body.len()
        );
        if reply.status == 200 {
            accepted += 1;
        } else {
            reply.error();
        }
    }
    assert!(
        accepted > 60,
        "only {accepted} bodies got through: the test tests little"
    );
    assert_eq!(door.server.open_requests(), 0);
}

#[tokio::test]
async fn broken_http_leaves_the_server_standing() {
    let door = Door::saying("x").await;
    let many: String = (0..300).map(|i| format!("h{i}: x\r\n")).collect();
    let large = format!("x: {}\r\n", "y".repeat(200_000));
    for (head, statuses) in [
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), vec![400, 505]),
        ("nonsense\r\n\r\n".to_owned(), vec![400]),
        (
            format!("GET /health HTTP/1.1\r\n{many}\r\n"),
            vec![400, 431],
        ),
        (
            format!("GET /health HTTP/1.1\r\n{large}\r\n"),
            vec![400, 431],
        ),
        (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".to_owned(),
            vec![400],
        ),
    ] {
        let mut stream = TcpStream::connect(door.address).await.unwrap();
        // The server may answer and close before it has taken everything.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer).await;
        let text = String::from_utf8_lossy(&answer);
        let status = text.split(' ').nth(1).and_then(|s| s.parse::<u16>().ok());
        assert!(status.is_none_or(|s| statuses.contains(&s)), "{text}");
    }
    assert_eq!(door.get("/health").await.status, 200);
}

#[tokio::test]
async fn a_body_that_ends_early_is_no_request() {
    let door = Door::saying("x").await;
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    stream
        .write_all(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"prom",
        )
        .await
        .unwrap();
    stream.shutdown().await.unwrap();
    drop(stream);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(door.fake.log().adds.is_empty());
    assert_eq!(door.get("/health").await.status, 200);
}

#[tokio::test]
async fn chunked_bodies_are_read_and_limited() {
    let door = Door::saying("a").await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: \
     close\r\ntransfer-encoding: chunked\r\n\r\n";
    let small = format!("{head}8\r\n{{\"prompt\r\n6\r\n\":\"x\"}}\r\n0\r\n\r\n");
    assert_eq!(
        exchange(door.address, small.as_bytes()).await.json()["choices"][0]["text"],
        "a"
    );
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let large = format!("{head}249F0\r\n{}\r\n0\r\n\r\n", "x".repeat(150_000));
    stream.write_all(large.as_bytes()).await.unwrap();
    assert_eq!(rest(stream).await.error().0, 413);
}
