//! A client that speaks HTTP/2 from its first byte on (prior knowledge, without TLS).

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Response, Version};
use futures_util::future::join_all;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::replica::{Answers, Replica};
use crate::{DEADLINE, Door, chat, until};

/// One connection, for all requests.
struct Http2(SendRequest<Body>);

impl Http2 {
    async fn connect(door: &Door) -> Self {
        let address = door.serving.url.strip_prefix("http://").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    async fn begin(&self, door: &Door, body: impl Into<Body>) -> Response<Incoming> {
        let request = Request::post(format!("{}/v1/chat/completions", door.serving.url))
            .header("content-type", "application/json")
            .body(body.into())
            .unwrap();
        let mut sender = self.0.clone();
        let answer = timeout(DEADLINE, sender.send_request(request)).await;
        let answer = answer.unwrap().unwrap();
        assert_eq!(answer.version(), Version::HTTP_2);
        answer
    }

    async fn send(&self, door: &Door, body: &Value) -> (u16, Bytes) {
        let answer = self.begin(door, body.to_string()).await;
        let status = answer.status().as_u16();
        let body = timeout(DEADLINE, answer.into_body().collect()).await;
        (status, body.unwrap().unwrap().to_bytes())
    }
}

#[tokio::test]
async fn requests_of_one_connection_are_answered_as_over_http_1() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    let client = Http2::connect(&door).await;
    let bodies: Vec<Value> = (0..20).map(|n| chat(&format!("x{n}"))).collect();
    let answers = join_all(bodies.iter().map(|body| client.send(&door, body))).await;
    for (body, (status, answer)) in bodies.iter().zip(&answers) {
        assert_eq!(*status, 200);
        let answer: Value = serde_json::from_slice(answer).unwrap();
        assert_eq!(answer["echo"], *body);
        assert_eq!(answer, door.post(body).await.json());
    }
    let seen = &replica.seen()[0];
    assert!(seen.headers.contains_key("host"), "{:?}", seen.headers);
    // more than a window of flow control, both ways
    let large = chat(&"y".repeat(3 << 20));
    let (status, answer) = client.send(&door, &large).await;
    assert_eq!(status, 200);
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer["echo"], large);
    // the gateway's own refusals
    let mut other = chat("x");
    other["model"] = "none".into();
    let (status, answer) = client.send(&door, &other).await;
    assert_eq!(status, 404);
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(answer, door.post(&other).await.json());
}

#[tokio::test]
async fn streams_of_one_connection_come_as_replicas_send_them() {
    let replica = Replica::start(Answers::Events(5, Duration::from_millis(60)), &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    let client = Http2::connect(&door).await;
    let stream = async || {
        let answer = client.begin(&door, chat("x").to_string()).await;
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut body = answer.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(first, "data: {\"at\":0}\n\n", "they were held back");
        body.collect().await.unwrap().to_bytes()
    };
    let rest: String = (1..5)
        .map(|at| format!("data: {{\"at\":{at}}}\n\n"))
        .collect();
    for text in join_all((0..8).map(|_| stream())).await {
        assert_eq!(text, format!("{rest}data: [DONE]\n\n"));
    }
    until("all are over", || door.gateway().open_requests() == 0).await;
}

/// A stream that is reset ends its replica's work, and none of the others.
#[tokio::test]
async fn a_stream_that_its_client_resets_frees_its_replica() {
    let replica = Replica::start(Answers::Hangs, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    let client = Http2::connect(&door).await;
    let body = chat("x").to_string();
    let waits = client.begin(&door, body.clone());
    assert!(timeout(Duration::from_millis(300), waits).await.is_err());
    until("the replica is left", || replica.open() == 0).await;
    until("it is over", || door.gateway().open_requests() == 0).await;
    assert_eq!(replica.seen().len(), 1);
    replica.answers(Answers::Whole);
    assert_eq!(client.send(&door, &chat("y")).await.0, 200);
}
