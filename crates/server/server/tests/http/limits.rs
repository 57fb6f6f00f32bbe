//! The limits of docs/limits.md, one after the other.

use std::time::{Duration, Instant};

use penstock_engine_client::testing::{Script, tokens};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::client::{Reply, exchange, open, read_until, request, rest};
use crate::door::Door;

async fn door(limits: Value) -> Door {
    let script = Script::new(|_| tokens(&[97], Duration::ZERO));
    Door::open_with(json!({"limits": limits}), script).await
}

fn padded(bytes: usize) -> Value {
    json!({"prompt": "x", "user": "y".repeat(bytes)})
}

/// What an answer takes that waits for nothing, mostly.
const MOMENT: Duration = Duration::from_millis(300);
const HANG: Duration = Duration::from_secs(300);

fn is_full(reply: &Reply) -> bool {
    reply.status == 503
        && reply.error().1["code"] == "queue_full"
        && reply.header("retry-after") == Some("1")
}

#[tokio::test]
async fn a_declared_length_over_the_limit_is_refused_by_its_header() {
    let door = door(json!({"max_body_bytes": 1000})).await;
    for (length, more) in [
        (1001, "expect: 100-continue\r\n"),
        (i64::MAX, "expect: 100-continue\r\n"),
        (i64::MAX, ""),
    ] {
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{more}\
             content-length: {length}\r\n\r\n"
        );
        let reply = exchange(door.address, head.as_bytes()).await;
        assert_eq!(reply.status, 413, "{}", reply.head);
    }
    // A client that sends all before it reads gets the answer too.
    let sent = padded(3_000_000).to_string();
    let all = request("POST", "/v1/completions", "", sent.as_bytes());
    assert_eq!(exchange(door.address, &all).await.status, 413);
    let mut fits = TcpStream::connect(door.address).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
                expect: 100-continue\r\ncontent-length: 14\r\n\r\n";
    fits.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut fits, "100 Continue\r\n\r\n").await;
    fits.write_all(b"{\"prompt\":\"x\"}").await.unwrap();
    assert_eq!(rest(fits).await.status, 200);
}

#[tokio::test]
async fn the_body_limit_follows_the_context() {
    let script = Script::new(|_| tokens(&[97], Duration::ZERO));
    let patch = json!({"limits": {"json_bytes": 5000}, "max_model_len": 1000});
    let door = Door::open_with(patch, script).await;
    // The longest token of the test's model is <|im_start|>.
    let limit = 1000 * "<|im_start|>".len() + 5000;
    let (status, error) = door.complete(&padded(limit)).await.error();
    assert_eq!(status, 413);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains(&format!("larger than {limit} bytes")),
        "{message}"
    );
    assert_eq!(door.complete(&padded(limit - 100)).await.status, 200);
}

#[tokio::test]
async fn a_text_that_cannot_fit_the_context_is_refused_untouched() {
    let script = Script::new(|_| tokens(&[97], Duration::ZERO));
    let door = Door::open_with(json!({"max_model_len": 10}), script).await;
    let long = "a".repeat(10 * "<|im_start|>".len() + 1);
    let chat = json!({"messages": [{"role": "user", "content": long}]});
    for reply in [
        door.complete(&json!({"prompt": long})).await,
        door.chat(&chat).await,
    ] {
        let (status, error) = reply.error();
        assert_eq!(
            (status, &error["code"]),
            (400, &json!("context_length_exceeded"))
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("more than so many tokens"), "{message}");
    }
}

#[tokio::test]
async fn bodies_under_way_share_a_budget() {
    let limits = json!({"max_body_bytes": 50_000, "bodies_bytes": 20_000, "free_body_bytes": 100});
    let door = door(limits).await;
    let mut slow = TcpStream::connect(door.address).await.unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 20000\r\n\r\n";
    slow.write_all(head.as_bytes()).await.unwrap();
    slow.write_all(&[b' '; 15_000]).await.unwrap();
    let refused = async || is_full(&door.complete(&padded(10_000)).await);
    while !refused().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(door.complete(&json!({"prompt": "x"})).await.status, 200);
    drop(slow);
    while refused().await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_body_has_so_many_fields_and_no_more() {
    let door = door(json!({})).await;
    let with = |count: usize| {
        let mut body = json!({"prompt": "x"});
        (1..count).for_each(|i| body[format!("f{i}")] = json!(1));
        body
    };
    assert_eq!(door.complete(&with(256)).await.status, 200);
    let (status, error) = door.complete(&with(257)).await.error();
    assert_eq!(status, 400);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("more than 256 fields")
    );
}

#[tokio::test]
async fn bodies_wait_for_a_thread_in_bounds_and_give_their_place_up() {
    // No thread at all for short bodies: they wait for good.
    let limits = json!({
        "max_body_bytes": 50_000, "inline_body_bytes": 100, "short_body_bytes": 10_000,
        "short_jobs": 0, "max_waiting_jobs": 1,
    });
    let door = door(limits).await;
    let waiting = open(door.address, "/v1/completions", &padded(1000)).await;
    // One that finds the place free waits in it for good.
    let refused = async || {
        let body = padded(1000);
        let reply = tokio::time::timeout(MOMENT, door.complete(&body)).await;
        reply.is_ok_and(|reply| is_full(&reply))
    };
    while !refused().await {}
    assert_eq!(
        door.complete(&padded(20_000)).await.status,
        200,
        "long bodies do not wait"
    );
    assert_eq!(door.complete(&json!({"prompt": "x"})).await.status, 200);
    drop(waiting);
    let began = Instant::now();
    loop {
        let next = open(door.address, "/tokenize", &padded(1000)).await;
        let mut next = std::pin::pin!(rest(next));
        if tokio::time::timeout(MOMENT, &mut next).await.is_err() && refused().await {
            break;
        }
        assert!(began.elapsed() < HANG, "the place is not taken again");
    }
}

#[tokio::test]
async fn idle_connections_make_room_for_new_ones() {
    let door = door(json!({"max_connections": 3})).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(TcpStream::connect(door.address).await.unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(door.get("/health").await.status, 200);
    let mut ended = [0];
    let read = tokio::time::timeout(HANG, idle[0].read(&mut ended)).await;
    assert!(
        matches!(read, Ok(Ok(0) | Err(_))),
        "the oldest is closed: {read:?}"
    );
    let newest = tokio::time::timeout(Duration::from_millis(50), idle[2].read(&mut ended)).await;
    assert!(newest.is_err(), "the newest stays");
}

#[tokio::test]
async fn an_answer_that_is_not_read_ends() {
    let door = door(json!({"max_body_bytes": 2_000_000, "write_timeout_s": 0.2})).await;
    let body = json!({"prompt": "a".repeat(1_500_000), "return_token_strs": true}).to_string();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(door.address).await.unwrap();
    let request = request("POST", "/tokenize", "", body.as_bytes());
    stream.write_all(&request).await.unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").await;
    let length = head.split("content-length: ").nth(1).unwrap();
    let length: usize = length.lines().next().unwrap().parse().unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(HANG, stream.read_to_end(&mut bytes)).await;
    let read = read.expect("an end in time");
    assert!(
        read.is_err() || bytes.len() < length / 2,
        "{read:?} of {length}"
    );
}

#[tokio::test]
async fn a_page_of_another_site_must_send_json() {
    let door = door(json!({})).await;
    let body = br#"{"prompt":"x"}"#;
    let post = async |headers: &str| {
        let bytes = request("POST", "/v1/completions", headers, body);
        exchange(door.address, &bytes).await
    };
    for headers in [
        "origin: http://evil.example\r\ncontent-type: text/plain\r\n",
        "origin: http://evil.example\r\n",
        "origin: null\r\ncontent-type: application/jsonx\r\n",
    ] {
        let (status, error) = post(headers).await.error();
        assert_eq!(
            (status, &error["code"]),
            (403, &json!("cross_origin")),
            "{headers}"
        );
    }
    for headers in [
        "content-type: text/plain\r\n",
        "origin: http://x\r\ncontent-type: text/plain\r\n",
        "origin: http://evil.example\r\ncontent-type: Application/JSON; charset=utf-8\r\n",
    ] {
        assert_eq!(post(headers).await.status, 200, "{headers}");
    }
    assert!(door.fake.log().adds.len() == 3);
}
