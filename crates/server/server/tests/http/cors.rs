//! Cross-origin requests as browsers send them, and the small endpoints beside the API.

use std::time::Duration;

use penstock_engine_client::testing::{Script, tokens};
use serde_json::json;

use crate::client::{Reply, exchange, request};
use crate::door::Door;

const PREFLIGHT: &str = "origin: http://app.example\r\naccess-control-request-method: POST\r\n\
                         access-control-request-headers: authorization,content-type\r\n";

async fn send(door: &Door, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
    exchange(door.address, &request(method, path, headers, body)).await
}

async fn door(origins: &[&str]) -> Door {
    let patch = json!({"allowed_origins": origins, "api_keys": ["k"]});
    Door::open_with(
        patch,
        Script::new(|_| tokens(b"x".map(u32::from).as_slice(), Duration::ZERO)),
    )
    .await
}

#[tokio::test]
async fn a_preflight_is_answered_before_the_key_is_checked() {
    let door = door(&["http://app.example"]).await;
    let reply = send(&door, "OPTIONS", "/v1/chat/completions", PREFLIGHT, b"").await;
    assert_eq!(reply.status, 204);
    for (name, value) in [
        ("access-control-allow-origin", "http://app.example"),
        ("access-control-allow-methods", "POST"),
        ("access-control-allow-headers", "authorization,content-type"),
        ("vary", "origin"),
    ] {
        assert_eq!(reply.header(name), Some(value), "{name}");
    }
    let other = PREFLIGHT.replace("app.example", "evil.example");
    let refused = send(&door, "OPTIONS", "/v1/chat/completions", &other, b"").await;
    assert_eq!(refused.status, 401);
    assert_eq!(refused.header("access-control-allow-origin"), None);
}

#[tokio::test]
async fn answers_and_errors_can_be_read_by_pages_of_allowed_origins_only() {
    let door = door(&["http://app.example"]).await;
    let body = br#"{"prompt":"x"}"#;
    for (origin, key, status) in [
        ("http://app.example", "k", 200),
        ("http://app.example", "wrong", 401),
        ("http://evil.example", "k", 200),
    ] {
        let headers = format!(
            "origin: {origin}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
        );
        let reply = send(&door, "POST", "/v1/completions", &headers, body).await;
        let readable = (origin == "http://app.example").then_some(origin);
        assert_eq!(reply.status, status, "{origin} {key}");
        assert_eq!(reply.header("access-control-allow-origin"), readable);
    }
}

#[tokio::test]
async fn a_star_allows_all_origins_and_nothing_allows_none() {
    let open = door(&["*"]).await;
    let reply = send(&open, "OPTIONS", "/v1/models", PREFLIGHT, b"").await;
    assert_eq!(reply.header("access-control-allow-origin"), Some("*"));
    let closed = Door::saying("x").await;
    let reply = send(&closed, "OPTIONS", "/v1/models", PREFLIGHT, b"").await;
    assert_eq!(reply.status, 405);
    let reply = send(&closed, "GET", "/v1/models", "origin: http://a\r\n", b"").await;
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (200, None)
    );
}

#[tokio::test]
async fn one_model_by_its_name() {
    let door = Door::saying("x").await;
    let model = door.get("/v1/models/alias").await.json();
    assert_eq!(model["id"], "alias");
    assert_eq!(model["max_model_len"], 8192);
    let (status, error) = door.get("/v1/models/org/other").await.error();
    assert_eq!((status, &error["code"]), (404, &json!("model_not_found")));
}

#[tokio::test]
async fn paths_beside_the_api() {
    let door = Door::saying("x").await;
    assert_eq!(door.get("/ping").await.status, 200);
    let index = door.get("/").await;
    assert!(index.text().contains("Penstock 1.2.3 serves tiny, alias"));
    let slash = door.get("/v1/models/?x=1").await;
    assert_eq!(
        (slash.status, slash.header("location")),
        (307, Some("/v1/models?x=1"))
    );
    assert_eq!(door.get("//evil.example/").await.status, 404);
}

#[tokio::test]
async fn a_compressed_body_is_415_and_a_byte_order_mark_is_skipped() {
    let door = Door::saying("x").await;
    let gzip = "content-encoding: gzip\r\n";
    let reply = send(&door, "POST", "/v1/completions", gzip, &[0x1f, 0x8b, 8, 0]).await;
    let (status, error) = reply.error();
    let message = error["message"].as_str().unwrap().to_owned();
    assert!(
        status == 415 && message.contains("Content-Encoding"),
        "{message}"
    );
    let marked = b"\xef\xbb\xbf{\"prompt\":\"x\"}";
    let reply = send(&door, "POST", "/v1/completions", "", marked).await;
    assert_eq!(reply.status, 200);
}
