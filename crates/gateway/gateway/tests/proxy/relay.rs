//! What goes through, and how.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use serde_json::json;

use crate::replica::{Answers, Replica};
use crate::{Door, chat, until};

#[tokio::test]
async fn bodies_headers_and_paths_go_through_unchanged() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    let body = "{ \"model\" :\"m\", \"x\":[1 ,2],\"messages\":[]}\n";
    let headers = [
        ("authorization", "Bearer k"),
        ("x-request-id", "my-id"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("x-other", "2"),
    ];
    let answer = door.send("/v1/chat/completions?a=b", &headers, body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers["x-request-id"], "my-id");
    assert_eq!(answer.json()["echo"]["x"], json!([1, 2]));
    let seen = &replica.seen()[0];
    assert_eq!(seen.path, "/v1/chat/completions?a=b");
    assert_eq!(seen.body, body, "byte for byte");
    assert_eq!(seen.headers["authorization"], "Bearer k");
    assert_eq!(seen.headers["x-request-id"], "my-id");
    assert_eq!(seen.headers["x-forwarded-for"], "127.0.0.1");
    assert_eq!(
        seen.headers["host"],
        replica.url.strip_prefix("http://").unwrap()
    );
    assert!(!seen.headers.contains_key("x-hop"));
    assert_eq!(seen.headers["x-other"], "2");
}

#[tokio::test]
async fn events_come_as_the_replica_sends_them() {
    let gap = Duration::from_millis(60);
    let replica = Replica::start(Answers::Events(5, gap), &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    let start = Instant::now();
    let answer = door
        .begin("/v1/completions", &[], chat("x").to_string())
        .await;
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut body = answer.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "data: {\"at\":0}\n\n");
    let after = start.elapsed();
    let rest = body.collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: {\"at\":4}\n\ndata: [DONE]\n\n"));
    assert!(start.elapsed() >= after + 4 * gap, "they were held back");
    until("the request is over", || {
        door.gateway().open_requests() == 0
    })
    .await;
    let page = door.get("/metrics").await.text();
    let line = "penstock:gateway_requests_total{version=\"test\",pool=\"p\",outcome=\"served\"} 1";
    assert!(page.contains(line), "{page}");
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_replica_s_work() {
    let slow = Answers::Events(1_000_000, Duration::from_millis(20));
    let replica = Replica::start(slow, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    for answers in [None, Some(Answers::Hangs)] {
        if let Some(answers) = answers {
            replica.answers(answers);
            let sent = door.begin("/v1/completions", &[], chat("x").to_string());
            assert!(
                tokio::time::timeout(Duration::from_millis(200), sent)
                    .await
                    .is_err()
            );
        } else {
            let mut body = door
                .begin("/v1/completions", &[], chat("x").to_string())
                .await;
            body.frame().await.unwrap().unwrap();
            assert_eq!(replica.open(), 1);
        }
        until("the replica is free", || replica.open() == 0).await;
        until("the gateway, too", || door.gateway().open_requests() == 0).await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_stream_at_its_source() {
    let replica = Replica::start(Answers::Events(10_000_000, Duration::ZERO), &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    let mut body = door
        .begin("/v1/completions", &[], chat("x").to_string())
        .await;
    body.frame().await.unwrap().unwrap();
    let before = resident_bytes();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes wait for the client");
}

/// A stream of hours in small: each pause, and the stream in all, is longer than every time-out.
#[tokio::test]
async fn no_time_out_of_a_request_ends_a_stream_that_pauses() {
    let gap = Duration::from_millis(800);
    let replica = Replica::start(Answers::Events(3, gap), &["m"]).await;
    let bounds = json!({
        "limits": {"header_timeout_s": 0.5, "write_timeout_s": 0.5, "body_timeout_s": 0.5},
        "connect_timeout_s": 0.5,
        "resume_timeout_s": 0.5,
    });
    let door = Door::open(&[&replica], bounds).await;
    let answer = door.post(&chat("x")).await;
    assert_eq!(answer.status, 200);
    let expected: String = (0..3)
        .map(|at| format!("data: {{\"at\":{at}}}\n\n"))
        .collect();
    assert_eq!(answer.text(), expected + "data: [DONE]\n\n");
    until("the request is over", || {
        door.gateway().open_requests() == 0
    })
    .await;
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[tokio::test]
async fn large_bodies_pass_and_larger_ones_are_refused() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let limits = json!({"limits": {"max_body_bytes": 3 << 20}});
    let door = Door::open(&[&replica], limits).await;
    let answer = door.post(&chat(&"y".repeat(2 << 20))).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body.len() / (1 << 20), 2);
    let answer = door.post(&chat(&"y".repeat(3 << 20))).await;
    assert_eq!(answer.status, 413);
    assert_eq!(answer.json()["error"]["code"], "request_too_large");
    // without a limit in the configuration
    let door = Door::open(&[&replica], json!({})).await;
    let most = 20 << 20;
    let whole = chat(&"y".repeat(most - chat("").to_string().len()));
    assert_eq!(whole.to_string().len(), most);
    let answer = door.post(&whole).await;
    assert_eq!(answer.status, 200);
    assert!(answer.json()["echo"] == whole);
    assert_eq!(door.post(&chat(&"y".repeat(most))).await.status, 413);
}

#[tokio::test]
async fn what_is_no_request_stops_here() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    for (body, wanted) in [
        ("", "not a JSON object"),
        ("[]", "not a JSON object"),
        ("{\"model\":\"m\"", "not valid JSON (byte 12)"),
        ("{\"model\":\"m\",\"model\":\"n\"}", "two members \"model\""),
        ("{\"model\":3}", "wrong type"),
    ] {
        let answer = door.send("/v1/completions", &[], body).await;
        assert_eq!(answer.status, 400, "{body}");
        let message = answer.json()["error"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.contains(wanted), "{message}");
    }
    let answer = door.send("/v2/x", &[], "{}").await;
    assert_eq!(answer.status, 404);
    assert_eq!(replica.seen().len(), 0);
}
