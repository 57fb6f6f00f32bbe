//! How answers end that do not end well, and answers that no replica should give.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::raw::RawReplica;
use crate::replica::{Answers, Fate, Replica};
use crate::{Answer, Door, chat, until};

const STREAM: &str = "data: {\"choices\":[{\"index\":0,\"finish_reason\":null}]}\n\n";
const STOP: &str = "data: {\"choices\":[{\"index\":0,\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

async fn door(raw: &RawReplica, more: Value) -> Door {
    let pool = json!({"name": "p", "source": {"static": [{"url": raw.url}]},
                      "fleet": {"slow_start_s": 0}});
    let mut config = json!({"pools": [pool]});
    crate::merge(&mut config, more);
    Door::with(config).await
}

/// The answer of a replica that sends this stream.
async fn relayed(path: &str, head: &str, body: impl Into<Vec<u8>>) -> Answer {
    let raw = RawReplica::stream(head, body).await;
    let door = door(&raw, json!({})).await;
    let answer = door.send(path, &[], chat("x").to_string()).await;
    until("it is over", || door.gateway().open_requests() == 0).await;
    answer
}

async fn text(path: &str, body: &str) -> String {
    relayed(path, "", body).await.text()
}

#[tokio::test]
async fn a_stream_that_ends_before_its_answer_says_so() {
    let chats = "/v1/chat/completions";
    let cut = "data: {\"choices\":[{\"finish_reason\":\"stop\"";
    for end in ["", cut, &cut[..38], "data: [DO", ": note\n", DONE] {
        let text = text(chats, &format!("{STREAM}{STREAM}{end}")).await;
        let error = text.strip_prefix(&format!("{STREAM}{STREAM}")).unwrap();
        assert!(error.starts_with("data: {\"error\":"), "{error}");
        assert!(
            error.contains("engine_failed") && error.ends_with(DONE),
            "{error}"
        );
    }
    // whole, though some of its end is missing
    for end in ["", DONE, "data: [DONE]\n", "data: [DONE]"] {
        let text = text(chats, &format!("{STREAM}{STOP}{end}")).await;
        assert_eq!(text.trim_end(), format!("{STREAM}{STOP}{end}").trim_end());
        assert!(text.ends_with("\n\n"));
    }
    let cut = "event: message_delta\ndata: {\"type\":\"message_delta\"}\n\n";
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    let ended = text("/v1/messages", cut).await;
    assert!(
        ended.contains("event: error\ndata: {\"type\":\"error\""),
        "{ended}"
    );
    assert_eq!(
        text("/v1/messages", &format!("{cut}{stop}")).await,
        format!("{cut}{stop}")
    );
    let completed = "data: {\"type\":\"response.completed\"}\n\n";
    assert!(text("/v1/responses", cut).await.contains("engine_failed"));
    assert_eq!(text("/v1/responses", completed).await, completed);
    // what other endpoints end with is not known
    assert_eq!(text("/v1/audio/speech", cut).await, cut);
}

/// What a client gets of a request with this body, when its stream ends behind `events`.
async fn ended_behind(path: &str, body: &Value, events: &str, by_text: bool) -> String {
    let raw = RawReplica::stream("", events.to_owned()).await;
    let door = door(&raw, json!({"resume_by_text": by_text})).await;
    door.send(path, &[], body.to_string()).await.text()
}

#[tokio::test]
async fn completions_have_choices_for_each_prompt() {
    let path = "/v1/completions";
    for (prompt, prompts) in [
        (json!("a"), 1),
        (json!(["a"]), 1),
        (json!(["a", "[,\"]"]), 2),
        (json!([1, 2, 3]), 1),
        (json!([[1, 2], [3]]), 2),
        (json!([[1, 2], "a", [3]]), 3),
    ] {
        for (n, by_text) in [(1, false), (2, false), (1, true), (2, true)] {
            let body = json!({"model": "m", "prompt": prompt, "n": n, "stream": true});
            let whole = STOP.repeat(n * prompts);
            let text = ended_behind(path, &body, &whole, by_text).await;
            assert_eq!(text, whole, "{body}");
            let cut = STOP.repeat(n * prompts - 1) + STREAM;
            let text = ended_behind(path, &body, &cut, by_text).await;
            assert!(text.contains("engine_failed"), "{body}: {text}");
        }
    }
    // chats have one prompt, whatever else a client sends
    let mut body = chat("x");
    body["prompt"] = json!(["a", "b"]);
    let text = ended_behind("/v1/chat/completions", &body, STOP, false).await;
    assert_eq!(text, STOP);
}

#[tokio::test]
async fn only_the_protocol_s_own_members_end_a_stream() {
    let chats = [
        json!({"choices": [{"index": 0, "finish_reason": null}], "metadata": {"error": "x"}}),
        json!({"choices": [{"index": 0, "finish_reason": null, "delta": {"error": {"a": 1}}}]}),
        json!({"choices": [{"delta": {"finish_reason": "stop"}, "finish_reason": null}]}),
        json!({"choices": [], "x": [{"finish_reason": "stop"}], "finish_reason": "stop"}),
    ];
    let messages = [
        json!({"type": "content_block_delta", "metadata": {"type": "error"}}),
        json!({"metadata": {"type": "message_stop"}, "type": "message_delta"}),
        json!({"delta": {"input": {"type": "error"}}, "type": "content_block_delta"}),
    ];
    let responses = [
        json!({"type": "response.in_progress", "response": {"x": {"type": "error"}}}),
        json!({"item": {"type": "response.completed"}, "type": "response.output_item.added"}),
    ];
    for (path, first, events) in [
        ("/v1/chat/completions", STREAM, &chats[..]),
        ("/v1/completions", STREAM, &chats),
        ("/v1/messages", "", &messages),
        ("/v1/responses", "", &responses),
    ] {
        for event in events {
            let text = text(path, &format!("{first}data: {event}\n\n")).await;
            assert!(
                text.contains("broke off its answer"),
                "{path} {event}: {text}"
            );
        }
    }
    // an event on several lines is one text
    let stop = "data: {\"choices\": [{\ndata: \"finish_reason\": \"stop\"}]}\n\n";
    for (path, event) in [
        ("/v1/chat/completions", stop),
        (
            "/v1/messages",
            "data: {\ndata: \"type\":\ndata: \"message_stop\"}\n\n",
        ),
    ] {
        assert_eq!(text(path, event).await, event);
    }
}

#[tokio::test]
async fn an_endless_event_is_broken_off() {
    let endless = [STREAM.as_bytes(), b"data: ", &[b'x'; 6 << 20]].concat();
    for head in ["", "x-penstock-resumable: 1\r\n"] {
        let text = relayed("/v1/chat/completions", head, endless.clone())
            .await
            .text();
        assert_eq!(text.matches("engine_failed").count(), 1, "{}", text.len());
        assert!(text.len() < 1000 && text.ends_with(DONE));
    }
    // a large one passes
    let large = format!("data: {}\n\n{DONE}", "x".repeat(3 << 20));
    assert!(text("/v1/chat/completions", &large).await == large);
}

#[tokio::test]
async fn the_head_of_an_answer_is_the_gateway_s_own() {
    let chats = "/v1/chat/completions";
    let json = "content-type: application/json\r\n";
    let old = RawReplica::start(vec![
        format!("HTTP/1.0 200 OK\r\n{json}\r\n{{\"a\":1}}").into(),
    ])
    .await;
    let gate = door(&old, json!({})).await;
    let answer = gate.begin(chats, &[], chat("x").to_string()).await;
    assert_eq!(answer.version(), axum::http::Version::HTTP_11);
    assert_eq!(
        answer.into_body().collect().await.unwrap().to_bytes(),
        "{\"a\":1}"
    );

    let both = "content-length: 3\r\ntransfer-encoding: chunked\r\n";
    let body = "7\r\n{\"a\":1}\r\n0\r\n\r\n";
    let both = RawReplica::start(vec![
        format!("HTTP/1.1 200 OK\r\n{json}{both}\r\n{body}").into(),
    ])
    .await;
    let gate = door(&both, json!({})).await;
    for _ in 0..2 {
        let answer = gate.post(&chat("x")).await;
        assert_eq!(answer.text(), "{\"a\":1}");
    }

    let switch = "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n";
    let switch = RawReplica::start(vec![switch.into()]).await;
    let gate = door(&switch, json!({})).await;
    let answer = gate.post(&chat("x")).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "service_unavailable");
}

#[tokio::test]
async fn only_the_protocol_s_own_model_is_renamed() {
    let rule = json!([{"name": "alias", "targets": [{"pool": "p", "model": "m"}]}]);
    let arguments = json!({"model": "m", "response": {"model": "m"}});
    let start = json!({"type": "message_start", "message": {"model": "m", "usage": null}});
    let block = json!({"type": "content_block_start",
                       "content_block": {"type": "tool_use", "input": arguments}});
    let stop = json!({"type": "message_stop"});
    let created = json!({"type": "response.created", "response":
        {"model": "m", "metadata": {"model": "m"}, "tools": [{"const": {"model": "m"}}]}});
    let completed = json!({"type": "response.completed", "response": {"model": "m"}});
    let whole = json!({"id": "c", "model": "m", "content": [{"input": arguments}],
                       "metadata": {"model": "m"}});
    let sse = |events: &[&Value]| -> String {
        events
            .iter()
            .map(|event| format!("data: {event}\n\n"))
            .collect()
    };
    let alias = |value: &Value, place: &str| {
        let mut value = value.clone();
        *value.pointer_mut(place).unwrap() = "alias".into();
        value
    };
    for (path, sent, wanted) in [
        (
            "/v1/messages",
            sse(&[&start, &block, &stop]),
            sse(&[&alias(&start, "/message/model"), &block, &stop]),
        ),
        (
            "/v1/responses",
            sse(&[&created, &completed]),
            sse(&[
                &alias(&created, "/response/model"),
                &alias(&completed, "/response/model"),
            ]),
        ),
        (
            "/v1/chat/completions",
            format!("{}{DONE}", sse(&[&whole])),
            format!("{}{DONE}", sse(&[&alias(&whole, "/model")])),
        ),
    ] {
        let raw = RawReplica::stream("", sent).await;
        let gate = door(&raw, json!({"models": rule})).await;
        let mut asked = chat("x");
        asked["model"] = "alias".into();
        let answer = gate.send(path, &[], asked.to_string()).await;
        assert_eq!(answer.text(), wanted, "{path}");
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
    let raw = RawReplica::start(vec![head.into(), whole.to_string().into()]).await;
    let gate = door(&raw, json!({"models": rule})).await;
    let mut asked = chat("x");
    asked["model"] = "alias".into();
    assert_eq!(gate.post(&asked).await.json(), alias(&whole, "/model"));
}

/// A replica that stops in a stream that cannot go on elsewhere.
#[tokio::test]
async fn a_hung_stream_that_cannot_move_ends_with_an_error() {
    let fates = [Fate::Hangs(60)].into();
    let told = Answers::Told(Arc::new(Mutex::new(fates)));
    let replica = Replica::start(told, &["m"]).await;
    let pool = json!({
        "name": "p", "source": {"static": [{"url": replica.url}]},
        "fleet": {"slow_start_s": 0, "health": {"period_s": 0.1, "timeout_s": 5, "failures": 2}},
    });
    let door = Door::with(json!({"pools": [pool]})).await;
    let mut body = chat("x");
    body["max_tokens"] = 9.into();
    let answer = door
        .begin("/v1/chat/completions", &[], body.to_string())
        .await;
    replica.healthy(false);
    let rest = answer.into_body().collect();
    let rest = tokio::time::timeout(Duration::from_secs(40), rest)
        .await
        .unwrap();
    let rest = String::from_utf8(rest.unwrap().to_bytes().to_vec()).unwrap();
    assert!(
        rest.contains("engine_failed") && rest.ends_with(DONE),
        "{rest}"
    );
    until("the replica is left", || replica.open() == 0).await;
}

#[tokio::test]
async fn a_drain_that_is_over_ends_streams_with_an_error() {
    let slow = Answers::Events(1000, Duration::from_millis(50));
    let replica = Replica::start(slow, &["m"]).await;
    let door = Door::open(&[&replica], json!({"drain_timeout_s": 0.3})).await;
    let begin = async |path| {
        let answer = door.begin(path, &[], chat("x").to_string()).await;
        let mut body = answer.into_body();
        body.frame().await.unwrap().unwrap();
        body
    };
    let chats = begin("/v1/chat/completions").await;
    let messages = begin("/v1/messages").await;
    let draining = tokio::spawn(door.serving.drain(std::future::pending()));
    let text = async |body: hyper::body::Incoming| {
        let body = body.collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    };
    let chats = text(chats).await;
    assert!(
        chats.contains("shutting down") && chats.ends_with(DONE),
        "{chats}"
    );
    let messages = text(messages).await;
    assert!(messages.contains("event: error\n"), "{messages}");
    draining.await.unwrap();
}

/// Streams under way do not keep others from sending their bodies.
#[tokio::test]
async fn a_body_that_was_sent_gives_its_room_back() {
    let slow = Answers::Events(1000, Duration::from_millis(50));
    let replica = Replica::start(slow, &["m"]).await;
    let limits = json!({"limits": {"bodies_bytes": 150_000, "free_body_bytes": 1000}});
    let door = Door::open(&[&replica], limits).await;
    let body = chat(&"y".repeat(100_000)).to_string();
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut answer = door.begin("/v1/chat/completions", &[], body.clone()).await;
        assert_eq!(answer.status(), 200);
        answer.body_mut().frame().await.unwrap().unwrap();
        open.push(answer);
    }
}

/// A marked stream whose request could not be kept ends as one without marks does.
#[tokio::test]
async fn a_stream_that_cannot_go_on_is_whole_at_its_last_event() {
    let body = format!("{STREAM}:resume [1]\n\n{STOP}{DONE}");
    let chunk = format!("{:x}\r\n{body}\r\n", body.len());
    let head = "transfer-encoding: chunked\r\nx-penstock-resumable: 1\r\n";
    let raw = RawReplica::stream(head, chunk).await;
    let fates = Arc::new(Mutex::new([Fate::Hangs(90)].into()));
    let other = Replica::start(Answers::Marked(fates), &["other"]).await;
    let pools = [("p", &raw.url), ("o", &other.url)].map(|(name, url)| {
        json!({"name": name, "source": {"static": [{"url": url}]}, "fleet": {"slow_start_s": 0}})
    });
    let door = Door::with(json!({"pools": pools, "resume_bytes": 10})).await;
    let path = "/v1/chat/completions";
    // it takes all the room that there is
    let mut body = chat("x");
    body["model"] = "other".into();
    let mut held = door.begin(path, &[], body.to_string()).await;
    held.body_mut().frame().await.unwrap().unwrap();
    let answer = door.send(path, &[], chat("x").to_string()).await;
    assert_eq!(answer.text(), format!("{STREAM}{STOP}{DONE}"));
    drop(held);
    until("it is over", || door.gateway().open_requests() == 0).await;
}
