//! Spans of requests at a collector.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use penstock_engine_client::testing::{Script, tokens};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::client::{exchange, request};
use crate::door::{Door, bytes_as_tokens};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A collector, and the spans that it gets.
async fn collector() -> (String, UnboundedReceiver<Value>) {
    type Spans = UnboundedSender<Value>;
    let take = async |State(spans): State<Spans>, body: axum::body::Bytes| {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let all = &body["resourceSpans"][0]["scopeSpans"][0]["spans"];
        for span in all.as_array().unwrap() {
            spans.send(span.clone()).unwrap();
        }
    };
    let (spans, got) = unbounded_channel();
    let router = Router::new().route("/traces", post(take)).with_state(spans);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/traces", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, got)
}

async fn door(patch: Value) -> Door {
    let script = Script::new(|_| tokens(&bytes_as_tokens("hello"), Duration::ZERO));
    Door::open_with(patch, script).await
}

/// The span whose name begins with `name`.
fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let is_named = |span: &&Value| span["name"].as_str().unwrap().starts_with(name);
    let mut found = spans.iter().filter(is_named);
    let one = found
        .next()
        .unwrap_or_else(|| panic!("no {name} in {spans:?}"));
    assert!(found.next().is_none(), "two of {name}");
    one
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|one| one["key"] == key);
    let value = found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"].as_object();
    value.unwrap().values().next().unwrap()
}

#[tokio::test]
async fn a_request_has_spans_from_the_socket_to_the_engine() {
    let (url, mut spans) = collector().await;
    let door = door(json!({"otlp_traces_endpoint": url})).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "top_p": 0.7,
                      "max_tokens": 9, "temperature": 0});
    let head = format!("traceparent: {PARENT}\r\nx-request-id: id-1\r\n");
    let bytes = request(
        "POST",
        "/v1/chat/completions",
        &head,
        body.to_string().as_bytes(),
    );
    let reply = exchange(door.address, &bytes).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(door.get("/health").await.status, 200);
    let page = door.get("/metrics").await;
    let dropped = "penstock:trace_spans_dropped_total{model_name=\"tiny\",engine=\"0\"} 0\n";
    assert!(page.text().contains(dropped));
    // What is not exported yet is flushed at the end.
    door.server.drain(std::future::pending()).await;
    let mut all = Vec::new();
    while let Ok(span) = spans.try_recv() {
        all.push(span);
    }
    let served = named(&all, "POST /v1/chat/completions");
    assert_eq!(served["parentSpanId"], "b7ad6b7169203331");
    assert_eq!(attribute(served, "http.response.status_code"), "200");
    assert_eq!(attribute(served, "gen_ai.request.id"), "id-1");
    let chat = named(&all, "chat tiny");
    assert_eq!(chat["parentSpanId"], served["spanId"]);
    for (key, wanted) in [
        ("gen_ai.operation.name", json!("chat")),
        ("gen_ai.request.model", json!("tiny")),
        ("gen_ai.request.max_tokens", json!("9")),
        ("gen_ai.request.temperature", json!(0.0)),
        ("gen_ai.request.top_p", json!(0.7)),
        ("gen_ai.usage.output_tokens", json!("5")),
        (
            "gen_ai.response.finish_reasons",
            json!([{"stringValue": "length"}]),
        ),
    ] {
        let value = attribute(chat, key);
        assert_eq!(value.get("values").unwrap_or(value), &wanted, "{key}");
    }
    let usage = &reply.json()["usage"]["prompt_tokens"];
    assert_eq!(
        attribute(chat, "gen_ai.usage.input_tokens"),
        &usage.to_string()
    );
    assert!(attribute(chat, "gen_ai.latency.time_to_first_token").is_f64());
    for phase in ["queue", "prefill", "decode"] {
        assert_eq!(named(&all, phase)["parentSpanId"], chat["spanId"]);
    }
    let traces = all.iter().map(|span| span["traceId"].as_str().unwrap());
    assert!(traces.into_iter().all(|id| id == &PARENT[3..35]));
    assert_eq!(all.len(), 5, "probes and scrapes have no spans");
}

#[tokio::test]
async fn a_trace_that_the_client_does_not_sample_is_not_exported() {
    let (url, mut spans) = collector().await;
    let door = door(json!({"otlp_traces_endpoint": url})).await;
    for parent in [PARENT.replace("-01", "-00"), "odd".to_owned()] {
        let head = format!("traceparent: {parent}\r\n");
        let body = json!({"prompt": "x"}).to_string();
        let bytes = request("POST", "/v1/completions", &head, body.as_bytes());
        assert_eq!(exchange(door.address, &bytes).await.status, 200);
    }
    door.server.drain(std::future::pending()).await;
    let mut ids = Vec::new();
    while let Ok(span) = spans.try_recv() {
        ids.push(span["traceId"].as_str().unwrap().to_owned());
    }
    assert_eq!(
        ids.len(),
        5,
        "those of the odd parent, which counts as none"
    );
    assert!(ids.iter().all(|id| *id == ids[0] && id != &PARENT[3..35]));
}

#[tokio::test]
async fn a_wrong_endpoint_is_an_error_at_the_start() {
    let config = crate::door::config(json!({"otlp_traces_endpoint": "grpc://c:4317"}));
    let error = penstock_server::Server::start(config).await.err().unwrap();
    assert!(error.to_string().contains("is not like http://"), "{error}");
}
