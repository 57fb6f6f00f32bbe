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
    let second = Replica::start(Answers::Status(400, "bad"), &["m"]).await;
    let door = Door::open(&[&first, &second], json!({})).await;
    for text in ["x", "y"] {
        assert_eq!(door.post(&chat(text)).await.status, 400);
    }
    assert_eq!(first.seen().len() + second.seen().len(), 2);
}

/// One more replica is asked whose fault it is: both fail, so it is the request's.
#[tokio::test]
async fn requests_that_replicas_fail_close_no_pool() {
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(Replica::start(Answers::Whole, &["m"]).await);
    }
    let replicas: Vec<&Replica> = all.iter().collect();
    let door = Door::open(&replicas, json!({})).await;
    for status in [500, 501, 505, 529] {
        let bad = Answers::Status(status, "{\"mine\":1}");
        all.iter().for_each(|one| one.answers(bad.clone()));
        for n in 0..40 {
            let before: usize = all.iter().map(|one| one.seen().len()).sum();
            let answer = door.post(&chat(&n.to_string())).await;
            assert_eq!(answer.status, status);
            assert_eq!(answer.text(), "{\"mine\":1}");
            let seen = all.iter().map(|one| one.seen().len()).sum::<usize>();
            assert_eq!(seen - before, 2);
        }
        all.iter().for_each(|one| one.answers(Answers::Whole));
        for n in 0..20 {
            assert_eq!(door.post(&chat(&n.to_string())).await.status, 200, "{n}");
        }
    }
}

/// What a replica may have done goes to no other one; what it has no room for does.
#[tokio::test]
async fn what_must_not_happen_twice_is_asked_for_once() {
    let first = Replica::start(Answers::Whole, &["m"]).await;
    let second = Replica::start(Answers::Whole, &["m"]).await;
    let pool = json!({
        "name": "p",
        "source": {"static": [{"url": first.url}, {"url": second.url}]},
        "fleet": {"slow_start_s": 0, "breaker": {"failures": 1_000_000},
                  "outliers": {"min_requests": 1_000_000}},
    });
    let door = Door::with(json!({"pools": [pool]})).await;
    let seen = || first.seen().len() + second.seen().len();
    let response = |more: serde_json::Value| {
        let mut body = json!({"model": "m", "input": "x"});
        crate::merge(&mut body, more);
        body.to_string()
    };
    let cases = [
        ("POST", "/v1/files", "{}".to_owned(), 1),
        ("POST", "/v1/batches?x=1", "{}".to_owned(), 1),
        ("DELETE", "/v1/files/f", String::new(), 1),
        ("PUT", "/v1/x", "{}".to_owned(), 1),
        ("POST", "/v1/responses/r/cancel", String::new(), 1),
        (
            "POST",
            "/v1/responses",
            response(json!({"background": true})),
            1,
        ),
        ("POST", "/v1/responses", response(json!({"store": true})), 1),
        (
            "POST",
            "/v1/responses",
            response(json!({"conversation": "c"})),
            1,
        ),
        ("POST", "/v1/responses?x=1", response(json!({})), 2),
        ("POST", "/v1/embeddings", response(json!({})), 2),
        ("GET", "/v1/files/f", String::new(), 2),
    ];
    for status in [500, 502] {
        for one in [&first, &second] {
            one.answers(Answers::Status(status, "no"));
        }
        for (method, path, body, wanted) in cases.clone() {
            let before = seen();
            let answer = door.ask(method, path, body).await;
            assert_eq!(answer.status, status, "{method} {path}");
            assert_eq!(seen() - before, wanted, "{status} {method} {path}");
        }
    }
    first.answers(Answers::Status(503, "full"));
    second.answers(Answers::Whole);
    for n in 0..10 {
        assert_eq!(door.ask("POST", "/v1/files", "{}").await.status, 200, "{n}");
    }
}

/// A 500 that another replica does not repeat is the replica's: the client gets the other answer,
/// and the replica soon no more requests.
#[tokio::test]
async fn a_replica_that_alone_fails_gets_no_more() {
    let good = Replica::start(Answers::Whole, &["m"]).await;
    let bad = Replica::start(Answers::Status(500, "bug"), &["m"]).await;
    let door = Door::open(&[&good, &bad], json!({})).await;
    for n in 0..60 {
        assert_eq!(door.post(&chat(&n.to_string())).await.status, 200, "{n}");
    }
    let seen = bad.seen().len();
    assert!((5..=8).contains(&seen), "{seen}: the breaker opens at five");
}

/// Better a try than a closed pool: with all breakers open requests go on to replicas.
#[tokio::test]
async fn with_all_breakers_open_requests_are_sent() {
    let first = Replica::start(Answers::Status(502, "down"), &["m"]).await;
    let second = Replica::start(Answers::Status(504, "down"), &["m"]).await;
    let pool = json!({
        "name": "p",
        "source": {"static": [{"url": first.url}, {"url": second.url}]},
        "fleet": {"slow_start_s": 0, "breaker": {"open_s": 600, "max_open_s": 600}},
        "flow": {"queue": true},
    });
    let door = Door::with(json!({"pools": [pool]})).await;
    for n in 0..30 {
        let status = door.post(&chat(&n.to_string())).await.status.as_u16();
        assert!(matches!(status, 502 | 504), "{status}");
    }
    let tried = first.seen().len() + second.seen().len();
    assert_eq!(tried, 60, "both, each time");
    assert_eq!(door.get("/health").await.status, 200);
    for one in [&first, &second] {
        one.answers(Answers::Whole);
    }
    for n in 0..20 {
        assert_eq!(door.post(&chat(&n.to_string())).await.status, 200, "{n}");
    }
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
