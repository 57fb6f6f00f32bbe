//! Other ways in: HTTP/2 without TLS, a Unix socket, a port for `/metrics`.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use penstock_engine_client::testing::{FakeEngine, Script, tokens};
use penstock_server::Server;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};

use crate::client::{exchange, read_until, request};
use crate::door::{Door, bytes_as_tokens, config};

fn script() -> Script {
    Script::new(|_| tokens(&bytes_as_tokens("hello"), Duration::from_millis(1)))
}

fn completion(stream: bool) -> Request<Body> {
    let body = json!({"prompt": "x", "stream": stream}).to_string();
    Request::post("http://x/v1/completions")
        .header("content-type", "application/json")
        .body(Body::from(body))
        .unwrap()
}

#[tokio::test]
async fn http2_by_prior_knowledge_serves_many_requests_on_one_connection() {
    let door = Door::open_with(json!({}), script()).await;
    let stream = TcpStream::connect(door.address).await.unwrap();
    let handshake =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let answers = (0..4).map(|number| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            let answer = sender
                .send_request(completion(number % 2 == 0))
                .await
                .unwrap();
            let status = answer.status();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(body.to_vec()).unwrap())
        })
    });
    for (number, answer) in answers.enumerate() {
        let (status, text) = answer.await.unwrap();
        assert_eq!(status, StatusCode::OK);
        let end = if number % 2 == 0 {
            "data: [DONE]\n\n"
        } else {
            "}"
        };
        assert!(text.ends_with(end), "{text}");
    }
    door.server.drain(std::future::pending()).await;
}

#[tokio::test]
async fn a_unix_socket_is_served_and_its_file_goes_with_the_server() {
    let path = std::env::temp_dir().join(format!("penstock-uds-{}", std::process::id()));
    // What a server that was killed leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Server::start(config(json!({"uds": path}))).await.unwrap();
    let fake = FakeEngine::connect(server.engine_socket(), script()).await;
    server.ready().await.unwrap();
    assert_eq!(server.url(), format!("unix:{}", path.display()));
    let stream = UnixStream::connect(&path).await.unwrap();
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let mut sent = completion(false);
    let host = hyper::header::HeaderValue::from_static("localhost");
    sent.headers_mut().insert(hyper::header::HOST, host);
    let answer = sender.send_request(sent).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    drop((answer, sender));
    let second = Server::start(config(json!({"uds": path}))).await;
    let error = second.err().unwrap().to_string();
    assert!(error.contains("penstock-uds"), "{error}");
    server.drain(std::future::pending()).await;
    drop(fake);
    assert!(!path.exists());
}

#[tokio::test]
async fn metrics_may_have_a_port_of_their_own() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let door = Door::open_with(json!({"metrics_port": port, "api_keys": ["k"]}), script()).await;
    let own = ([127, 0, 0, 1], port).into();
    let get = |path| request("GET", path, "", b"");
    let page = exchange(own, &get("/metrics")).await;
    assert!(page.text().contains("vllm:num_requests_running"));
    assert_eq!(exchange(own, &get("/health")).await.status, 200);
    let mut stream = TcpStream::connect(own).await.unwrap();
    let asked = stream.write_all(&get("/metrics/stream")).await;
    asked.unwrap();
    let lines = read_until(&mut stream, "\"step\"").await;
    assert!(lines.starts_with("HTTP/1.1 200"), "{lines}");
    assert_eq!(door.get("/metrics/stream").await.error().0, 404);
    assert_eq!(exchange(own, &get("/v1/models")).await.error().0, 404);
    assert_eq!(door.get("/metrics").await.error().0, 404);
    door.server.drain(std::future::pending()).await;
}
