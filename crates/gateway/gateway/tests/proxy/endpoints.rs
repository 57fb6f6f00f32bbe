//! Endpoints beside those for text, paths before them, and which of them a key may reach.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::replica::{Answers, Replica};
use crate::{Answer, Door, chat};

const SAYS: Answers = Answers::Late(Duration::ZERO);

async fn ask(door: &Door, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{}{path}", door.serving.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = door.client.send(request.body(Bytes::new()).unwrap()).await;
    let (parts, body) = answer.unwrap().into_parts();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: body.collect().await.unwrap().to_bytes(),
    }
}

fn pool(name: &str, url: &str) -> Value {
    json!({"name": name, "source": {"static": [{"url": url}]}, "fleet": {"slow_start_s": 0}})
}

/// A form names its model as a body of JSON does: it chooses the pool, and is renamed in its place.
#[tokio::test]
async fn a_form_goes_where_its_model_is() {
    let hears = Replica::start(SAYS, &["whisper"]).await;
    let writes = Replica::start(SAYS, &["m"]).await;
    let rules = json!([{"name": "ears", "targets": [{"pool": "a", "model": "whisper"}]},
                       {"name": "m", "targets": [{"pool": "b"}]}]);
    let pools = json!([pool("b", &writes.url), pool("a", &hears.url)]);
    let door = Door::with(json!({"pools": pools, "models": rules})).await;
    let file = "RIFF\0\u{1}\r\n--other\r\n".repeat(5000);
    let form = |model: &str| {
        format!(
            "--b1\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
             Content-Type: audio/wav\r\n\r\n{file}\r\n--b1\r\n\
             Content-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--b1--\r\n"
        )
    };
    let headers = [("content-type", "multipart/form-data; boundary=b1")];
    let path = "/v1/audio/transcriptions";
    for (asked, got, replica) in [("ears", "whisper", &hears), ("whisper", "whisper", &hears)] {
        let before = replica.seen().len();
        assert_eq!(door.send(path, &headers, form(asked)).await.status, 200);
        let seen = replica.seen();
        assert_eq!(seen.len(), before + 1);
        assert_eq!(seen[before].body, form(got).as_bytes());
        let kind = &seen[before].headers["content-type"];
        assert_eq!(kind, "multipart/form-data; boundary=b1");
    }
    assert_eq!(writes.seen().len(), 0);
    assert_eq!(door.send(path, &headers, form("none")).await.status, 404);
    let cut = form("ears");
    let cut = cut[..cut.len() - 9].to_owned();
    assert_eq!(door.send(path, &headers, cut).await.status, 400);
    assert_eq!(door.send(path, &[], "no JSON").await.status, 400);
}

#[tokio::test]
async fn requests_without_a_body_go_on() {
    let replica = Replica::start(SAYS, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    for (method, path) in [
        ("GET", "/v1/responses/resp_1?include=a"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/files/a%20b/content"),
        ("PUT", "/v1/x"),
    ] {
        assert_eq!(ask(&door, method, path, &[]).await.status, 200, "{path}");
        assert_eq!(replica.seen().pop().unwrap().path, path);
    }
    let seen = replica.seen().len();
    for (method, path, wanted) in [
        ("POST", "/v1/chat/completions", 400),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/kv/stats", 403),
        ("GET", "/v1/KV/stats", 403),
        ("GET", "/elsewhere", 404),
    ] {
        let status = ask(&door, method, path, &[]).await.status;
        assert_eq!(status, wanted, "{method} {path}");
    }
    assert_eq!(replica.seen().len(), seen);
}

/// The check of `/v1/kv` holds whatever a replica makes of a path.
#[tokio::test]
async fn paths_that_replicas_may_read_otherwise_are_refused() {
    let replica = Replica::start(SAYS, &["m"]).await;
    let door = Door::open(&[&replica], json!({"backend_api_key": "theirs"})).await;
    let address = door.serving.url.strip_prefix("http://").unwrap();
    for path in [
        "/v1/../kv",
        "/v1/%6bv/x",
        "/v1//kv/x",
        "/v1/x/../kv/x",
        "/v1/x%2f..%2fkv",
        "/v1/%2e%2e/kv",
        "/v1/..;/kv",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{path}: {answer}");
    }
    assert_eq!(replica.seen().len(), 0);
}

#[tokio::test]
async fn a_request_names_one_host() {
    let replica = Replica::start(SAYS, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    let address = door.serving.url.strip_prefix("http://").unwrap();
    // line ends are CR LF, also behind a request that is right
    for head in [
        "GET /health HTTP/1.1\nhost: a\n\n",
        "GET /health HTTP/1.1\r\nhost: a\r\nx: b\n\r\n",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer}");
    }
    for (hosts, wanted) in [
        ("", "400"),
        ("host: a\r\nhost: b\r\n", "400"),
        ("host: a\r\n", "200"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("GET /health HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {wanted} ")),
            "{hosts}: {answer}"
        );
    }
}

/// A gateway behind a gateway, each with a path before its endpoints.
#[tokio::test]
async fn paths_stand_before_endpoints() {
    let replica = Replica::start(SAYS, &["m"]).await;
    let inner = json!({"pools": [pool("p", &replica.url)], "root_path": "/team/llm",
                       "api_keys": ["theirs"]});
    let inner = Door::with(inner).await;
    let backend = format!("{}/team/llm/v1", inner.serving.url);
    let outer = json!({"pools": [pool("p", &backend)], "backend_api_key": "theirs"});
    let outer = Door::with(outer).await;
    assert_eq!(outer.get("/v1/models").await.json()["data"][0]["id"], "m");
    assert_eq!(outer.post(&chat("x")).await.status, 200);
    assert_eq!(replica.seen()[0].path, "/v1/chat/completions");
    let key = [("authorization", "Bearer theirs")];
    for path in ["/team/llm/v1/models", "/v1/models"] {
        assert_eq!(inner.get_with(path, &key).await.status, 200, "{path}");
        assert_eq!(inner.get(path).await.status, 401, "{path}");
    }
    assert_eq!(inner.get("/team/llm/health").await.status, 200);
    let browser = [("accept", "text/html")];
    let page = inner.get_with("/team/llm", &browser).await;
    assert!(page.text().contains("src=\"llm/page/main.js\""));
    for path in [
        "/",
        "/page/main.js",
        "/team/llm/page/main.js",
        "/favicon.ico",
    ] {
        assert_eq!(inner.get_with(path, &browser).await.status, 200, "{path}");
    }
    assert_eq!(inner.get("/team/llm").await.status, 401);
    let document = inner.get_with("/openapi.json", &key).await.json();
    let paths = document["paths"].as_object().unwrap();
    for (path, there) in [
        ("/v1/chat/completions", true),
        ("/v1/models/{id}", true),
        ("/openapi.json", true),
        ("/v1/kv", false),
        ("/metrics/stream", false),
    ] {
        assert_eq!(paths.contains_key(path), there, "{path}");
    }
    assert_eq!(
        inner.get_with("/team/llm/v1/kv/stats", &key).await.status,
        403
    );
}

#[tokio::test]
async fn a_key_may_be_for_some_endpoints() {
    let replica = Replica::start(SAYS, &["m"]).await;
    let file = std::env::temp_dir().join(format!("penstock-endpoints-{}", std::process::id()));
    let keys = json!({"keys": [
        {"name": "chats", "key": "kc", "endpoints": ["/v1/chat/completions", "/v1/models"]},
        {"name": "all", "key": "ka"},
    ]});
    std::fs::write(&file, keys.to_string()).unwrap();
    let door = Door::open(&[&replica], json!({"api_key_file": file})).await;
    let body = chat("x").to_string();
    for (key, path, wanted) in [
        ("kc", "/v1/chat/completions", 200),
        ("kc", "/v1/completions", 403),
        ("kc", "/v1/load_lora_adapter", 403),
        ("ka", "/v1/load_lora_adapter", 200),
    ] {
        let headers = [("x-api-key", key)];
        let answer = door.send(path, &headers, body.clone()).await;
        assert_eq!(answer.status, wanted, "{key} {path}: {}", answer.text());
        if wanted == 403 {
            assert_eq!(answer.json()["error"]["code"], "endpoint_forbidden");
        }
    }
    let headers = [("x-api-key", "kc")];
    assert_eq!(
        ask(&door, "GET", "/v1/models/m", &headers).await.status,
        200
    );
    assert_eq!(ask(&door, "GET", "/v1/files", &headers).await.status, 403);
    assert_eq!(ask(&door, "GET", "/health", &headers).await.status, 200);
    assert_eq!(replica.seen().len(), 2);
    std::fs::remove_file(file).unwrap();
}
