//! Trace context on its way to replicas, and the gateway's spans at a collector.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::replica::{Answers, Replica};
use crate::{Door, chat};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const CHAT: &str = "/v1/chat/completions";

/// A collector, and the spans that it gets.
async fn collector() -> (String, UnboundedReceiver<Value>) {
    type Spans = UnboundedSender<Value>;
    let take = async |State(spans): State<Spans>, body: Bytes| {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let all = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        for span in all.as_array().unwrap() {
            spans.send(span.clone()).unwrap();
        }
    };
    let (spans, got) = unbounded_channel();
    let router = Router::new()
        .route("/v1/traces", post(take))
        .with_state(spans);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, got)
}

/// Without a collector the gateway is no part of a trace: headers pass as they came.
#[tokio::test]
async fn trace_headers_pass_a_gateway_without_a_collector() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    for parent in [PARENT, "odd"] {
        let headers = [("traceparent", parent), ("tracestate", "a=b")];
        assert_eq!(
            door.send(CHAT, &headers, chat("x").to_string())
                .await
                .status,
            200
        );
        let seen = replica.seen().pop().unwrap();
        assert_eq!(seen.headers["traceparent"], parent);
        assert_eq!(seen.headers["tracestate"], "a=b");
    }
}

#[tokio::test]
async fn each_attempt_is_a_span_and_the_parent_of_the_replica_s() {
    let (url, mut spans) = collector().await;
    let full = Replica::start(Answers::Status(503, "{}"), &["m"]).await;
    let free = Replica::start(Answers::Whole, &["m"]).await;
    let door = Door::open(&[&full, &free], json!({"otlp_traces_endpoint": url})).await;
    // until one has been to both
    let mut sent = 0;
    while full.seen().is_empty() {
        let headers = [("traceparent", PARENT), ("tracestate", "a=b")];
        assert_eq!(
            door.send(CHAT, &headers, chat("x").to_string())
                .await
                .status,
            200
        );
        sent += 1;
    }
    door.serving.drain(std::future::pending()).await;
    let mut all = Vec::new();
    while let Ok(span) = spans.try_recv() {
        all.push(span);
    }
    let of = |name: &str| {
        all.iter()
            .filter(|one| one["name"] == name)
            .collect::<Vec<_>>()
    };
    let (served, attempts) = (of(&format!("POST {CHAT}")), of("attempt"));
    assert_eq!((served.len(), attempts.len()), (sent, sent + 1));
    for span in &served {
        assert_eq!(span["parentSpanId"], "b7ad6b7169203331");
    }
    let last = served.last().unwrap();
    let tries: Vec<_> = attempts
        .iter()
        .filter(|one| one["parentSpanId"] == last["spanId"])
        .collect();
    assert_eq!(tries.len(), 2);
    assert_eq!(tries[0]["status"]["message"], "refused");
    assert!(tries[1].get("status").is_none());
    for (replica, attempt) in [(&full, tries[0]), (&free, tries[1])] {
        let seen = replica.seen().pop().unwrap();
        let id = attempt["spanId"].as_str().unwrap();
        assert_eq!(
            seen.headers["traceparent"],
            format!("{}-{id}-01", &PARENT[..35])
        );
        assert_eq!(seen.headers["tracestate"], "a=b");
    }
}
