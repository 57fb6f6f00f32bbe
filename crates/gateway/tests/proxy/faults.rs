//! Replicas that fail, and gateways that end.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::json;

use crate::replica::{Answers, Replica};
use crate::{Door, chat, until};

/// Tried: a refused connection, 502, 503, 429, a connection that closes without an answer.
#[tokio::test]
async fn a_request_goes_on_elsewhere_until_it_is_answered() {
    let good = Replica::start(Answers::Whole, &["m"]).await;
    let bad = Replica::start(Answers::Status(503, "full"), &["m"]).await;
    let worse = Replica::start(Answers::Status(502, "no"), &["m"]).await;
    let gone = Replica::start(Answers::Whole, &["m"]).await;
    let door = Door::open(&[&bad, &worse, &gone, &good], json!({"retries": 3})).await;
    drop(gone);
    for n in 0..40 {
        let answer = door.post(&chat(&n.to_string())).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(good.seen().len(), 40, "each exactly once");
    bad.answers(Answers::Status(429, "full"));
    assert_eq!(door.post(&chat("x")).await.status, 200);
}

/// A replica that hangs keeps its requests while it is healthy and loses them when it is not.
#[tokio::test]
async fn a_request_leaves_a_hung_replica() {
    let hung = Replica::start(Answers::Hangs, &["m"]).await;
    let other = Replica::start(Answers::Hangs, &["m"]).await;
    let pool = json!({
        "name": "p",
        "source": {"static": [{"url": hung.url}, {"url": other.url}]},
        "fleet": {"slow_start_s": 0, "health": {"period_s": 0.1, "timeout_s": 5, "failures": 2}},
    });
    let door = Door::with(json!({"pools": [pool]})).await;
    let first = async {
        until("one has it", || hung.open() + other.open() == 1).await;
        let (has, free) = match hung.open() {
            1 => (&hung, &other),
            _ => (&other, &hung),
        };
        free.answers(Answers::Whole);
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert_eq!((has.open(), free.seen().len()), (1, 0), "it waits");
        has.healthy(false);
        std::future::pending::<()>().await;
    };
    let body = chat("x");
    let answer = tokio::select! {
        answer = door.post(&body) => answer,
        () = first => unreachable!(),
    };
    assert_eq!(answer.status, 200);
    until("the hung one is left", || hung.open() + other.open() == 0).await;
}

/// The last refusal goes to the client with its own status, header and body.
#[tokio::test]
async fn when_all_refuse_the_client_learns_why() {
    let first = Replica::start(Answers::Status(429, "{\"mine\":1}"), &["m"]).await;
    let second = Replica::start(Answers::Status(429, "{\"mine\":1}"), &["m"]).await;
    let door = Door::open(&[&first, &second], json!({})).await;
    let answer = door.post(&chat("x")).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.headers["retry-after"], "7");
    assert_eq!(answer.text(), "{\"mine\":1}");
    assert_eq!(first.seen().len() + second.seen().len(), 2, "each once");
}

/// What a replica says about the request itself is not asked again elsewhere.
#[tokio::test]
async fn errors_of_the_request_are_not_retried() {
    let first = Replica::start(Answers::Status(400, "bad"), &["m"]).await;
    let second = Replica::start(Answers::Status(500, "bug"), &["m"]).await;
    let door = Door::open(&[&first, &second], json!({})).await;
    let statuses = [
        door.post(&chat("x")).await.status,
        door.post(&chat("y")).await.status,
    ];
    assert_eq!(first.seen().len() + second.seen().len(), 2, "{statuses:?}");
}

#[tokio::test]
async fn retries_are_bounded() {
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(Replica::start(Answers::Status(503, "full"), &["m"]).await);
    }
    let replicas: Vec<&Replica> = all.iter().collect();
    let door = Door::open(&replicas, json!({"retries": 1})).await;
    assert_eq!(door.post(&chat("x")).await.status, 503);
    assert_eq!(all.iter().map(|one| one.seen().len()).sum::<usize>(), 2);
}

/// A stream that breaks off ends with an error event, in the form of its protocol, and one end.
#[tokio::test]
async fn a_broken_stream_says_so_once() {
    let replica = Replica::start(Answers::Breaks(3), &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    let text = door.post(&chat("x")).await.text();
    assert!(text.starts_with("data: {\"at\":0}\n\ndata: {\"at\":1}\n\ndata: {\"at\":2}\n\n"));
    assert_eq!(text.matches("engine_failed").count(), 1, "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let text = door
        .send("/v1/messages", &[], chat("x").to_string())
        .await
        .text();
    assert!(
        text.contains("event: error\ndata: {\"type\":\"error\""),
        "{text}"
    );
    until("both are over", || door.gateway().open_requests() == 0).await;
}

#[tokio::test]
async fn without_replicas_it_is_unavailable_and_says_so() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    drop(replica);
    let answer = door.post(&chat("x")).await;
    assert_eq!(answer.status, 503);
    assert!(answer.headers.contains_key("retry-after"));
    assert_eq!(answer.json()["error"]["code"], "service_unavailable");
}

#[tokio::test]
async fn a_drain_lets_open_streams_end_and_refuses_new_requests() {
    let slow = Answers::Events(20, Duration::from_millis(25));
    let replica = Replica::start(slow, &["m"]).await;
    let door = Door::open(&[&replica], json!({})).await;
    let mut body = door
        .begin("/v1/completions", &[], chat("x").to_string())
        .await
        .into_body();
    body.frame().await.unwrap().unwrap();
    let gateway = door.gateway();
    let draining = tokio::spawn(door.serving.drain(std::future::pending()));
    let rest = body.collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"));
    draining.await.unwrap();
    assert_eq!(gateway.open_requests(), 0);
}

#[tokio::test]
async fn more_requests_than_it_may_hold_get_429() {
    let replica = Replica::start(Answers::Hangs, &["m"]).await;
    let door = Door::open(&[&replica], json!({"max_requests": 2})).await;
    let held = [chat("a").to_string(), chat("b").to_string()];
    let [first, second] = held.map(|body| Box::pin(door.begin("/v1/completions", &[], body)));
    let third = async {
        until("two are inside", || replica.open() == 2).await;
        door.post(&chat("c")).await
    };
    let answer = tokio::select! {
        answer = third => answer,
        _ = first => panic!("the first was answered"),
        _ = second => panic!("the second was answered"),
    };
    assert_eq!(answer.status, 429);
    assert_eq!(answer.json()["error"]["code"], "saturated");
    assert_eq!(answer.headers["retry-after"], "1");
}
