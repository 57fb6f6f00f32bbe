//! Clients that leave, engines that die, servers that stop.

use std::time::{Duration, Instant};

use penstock_engine_client::testing::{Action, FakeEngine, Script, tokens};
use penstock_wire::{Finish, LogprobRow, Output};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{open, read_until, rest};
use crate::door::{Door, endless, send};

const HANG: Duration = Duration::from_secs(300);

async fn until(what: &str, probe: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !probe().await {
        assert!(began.elapsed() < HANG, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_is_cancelled_at_once() {
    let mut door = Door::open(|_| endless()).await;
    let chat =
        json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5000, "stream": true});
    let streamed = json!({"prompt": "x", "max_tokens": 5000, "stream": true});
    let whole = json!({"prompt": ["x", "y"], "max_tokens": 5000});
    let mut expected = 0;
    for (path, body, requests) in [
        ("/v1/chat/completions", chat, 1),
        ("/v1/completions", streamed, 1),
        ("/v1/completions", whole, 2),
    ] {
        expected += requests;
        let mut stream = open(door.address, path, &body).await;
        door.fake.wait_log(|log| log.adds.len() == expected).await;
        if body["stream"] == true {
            read_until(&mut stream, "x").await;
        }
        let began = Instant::now();
        drop(stream);
        door.fake
            .wait_log(|log| log.cancels.len() == expected)
            .await;
        // Nothing else would end the requests.
        assert!(began.elapsed() < HANG, "{path}: {:?}", began.elapsed());
    }
    until("no request is open", async || {
        door.server.open_requests() == 0
    })
    .await;
    let page = door.get("/metrics").await;
    assert!(page.text().contains(
        r#"vllm:request_success_total{model_name="tiny",engine="0",finished_reason="abort"} 4"#
    ));
}

/// Nothing on the wire tells it from one that has left (docs/limits.md).
#[tokio::test]
async fn a_client_that_closes_its_sending_side_counts_as_gone() {
    let mut door = Door::open(|_| endless()).await;
    let body = json!({"prompt": "x", "max_tokens": 5000, "stream": true});
    let mut stream = open(door.address, "/v1/completions", &body).await;
    read_until(&mut stream, "x").await;
    stream.shutdown().await.unwrap();
    door.fake.wait_log(|log| log.cancels.len() == 1).await;
}

#[tokio::test]
async fn an_engine_death_ends_the_stream_with_an_error_and_done() {
    let door = Door::open(|_| {
        vec![
            send(&[97], Finish::None),
            Action::Wait(Duration::from_millis(50)),
            Action::Die,
        ]
    })
    .await;
    let reply = door.complete(&json!({"prompt": "x", "stream": true})).await;
    assert_eq!(reply.status, 200);
    let events = reply.events();
    assert_eq!(events[0]["choices"][0]["text"], "a");
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["code"], "engine_failed");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .starts_with("The engine failed: "),
        "{error}"
    );
    let health = door.get("/health").await;
    assert_eq!(health.error().0, 503);
    let refused = door.complete(&json!({"prompt": "x"})).await;
    assert_eq!(
        (refused.error().0, refused.header("retry-after")),
        (503, Some("2"))
    );
}

#[tokio::test]
async fn a_new_engine_is_served_again() {
    let door = Door::open(|_| vec![Action::Die]).await;
    assert_eq!(door.complete(&json!({"prompt": "x"})).await.status, 503);
    let socket = door.server.engine_socket().to_owned();
    let _second =
        FakeEngine::connect(&socket, Script::new(|_| tokens(&[98], Duration::ZERO))).await;
    let deadline = Instant::now() + HANG;
    while door.get("/ready").await.status != 200 {
        assert!(Instant::now() < deadline, "no second engine");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        door.complete(&json!({"prompt": "x"})).await.json()["choices"][0]["text"],
        "b"
    );
}

#[tokio::test]
async fn a_stuck_engine_is_not_healthy() {
    let script = Script::new(|_| vec![Action::Stall]);
    let door = Door::open_with(json!({"stall_timeout_s": 0.3}), script).await;
    assert_eq!(door.get("/health").await.status, 200);
    let _stuck = open(door.address, "/v1/completions", &json!({"prompt": "x"})).await;
    until("it is unhealthy", async || {
        door.get("/health").await.status == 503
    })
    .await;
    let (_, error) = door.get("/health").await.error();
    assert!(
        error["message"].as_str().unwrap().contains("stuck"),
        "{error}"
    );
    let refused = door.complete(&json!({"prompt": "x"})).await;
    assert_eq!(
        (refused.error().0, refused.header("retry-after")),
        (503, Some("2")),
        "a request would wait without bound"
    );
}

#[tokio::test]
async fn the_place_of_a_client_that_left_is_free_when_the_engine_has_ended_its_request() {
    let mut script = Script::new(|_| vec![Action::Stall]);
    script.ready.max_num_seqs = 1;
    let mut door = Door::open_with(json!({"max_queue": 0}), script).await;
    let body = json!({"prompt": "x"});
    let left = open(door.address, "/v1/completions", &body).await;
    door.fake.wait_log(|log| log.adds.len() == 1).await;
    drop(left);
    door.fake.wait_log(|log| log.cancels.len() == 1).await;
    let refused = door.complete(&body).await;
    assert_eq!(refused.error().1["code"], "queue_full");
    assert_eq!(door.server.open_requests(), 1);
}

#[tokio::test]
async fn draining_lets_open_streams_end_and_refuses_new_ones() {
    let script = Script::new(|_| tokens(&[b'x'.into(); 30], Duration::from_millis(100)));
    let door = Door::open_with(json!({}), script).await;
    let body = json!({"prompt": "x", "stream": true, "max_tokens": 30});
    let mut stream = open(door.address, "/v1/completions", &body).await;
    read_until(&mut stream, "data: ").await;
    let address = door.address;
    let Door {
        server, mut fake, ..
    } = door;
    let drained = tokio::spawn(server.drain(std::future::pending()));
    let ready = crate::client::request("GET", "/ready", "", b"");
    until("it drains", async || {
        crate::client::exchange(address, &ready).await.status == 503
    })
    .await;

    let again = crate::client::rest(open(address, "/v1/completions", &body).await).await;
    assert_eq!(
        (again.error().0, again.header("retry-after")),
        (503, Some("5"))
    );
    let tail = read_until(&mut stream, "[DONE]").await;
    assert!(
        tail.contains(r#""finish_reason":"length""#) && !tail.contains("error"),
        "{tail}"
    );
    drained.await.unwrap();
    assert!(fake.wait_log(|log| log.shutdown).await.cancels.is_empty());
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_drain_that_takes_too_long_ends_streams_with_an_error() {
    let door = Door::open_with(json!({"drain_timeout_s": 0.2}), Script::new(|_| endless())).await;
    let body = json!({"prompt": "x", "stream": true, "max_tokens": 5000});
    let stream = open(door.address, "/v1/completions", &body).await;
    let mut fake = door.fake;
    fake.wait_log(|log| log.adds.len() == 1).await;
    let began = Instant::now();
    door.server.drain(std::future::pending()).await;
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    let events = rest(stream).await.events();
    assert!(events.last().unwrap()["error"].is_object());
}

#[tokio::test]
async fn a_client_that_does_not_read_is_given_up() {
    let rows: Vec<(u32, f32)> = (0..20).map(|i| (40 + i, -0.5)).collect();
    let row = LogprobRow {
        logprob: -0.25,
        rank: 1,
        alternatives: rows,
    };
    let output = Output {
        tokens: vec![97; 16],
        logprobs: vec![row; 16],
        ..Output::default()
    };
    // About 6 KB an output: far more in all than the kernel's socket buffers and the cap hold.
    let actions: Vec<Action> = vec![Action::Send(output); 8000];
    let mut script = Script::new(move |_| actions.clone());
    script.ready.max_model_len = 1 << 20;
    let mut door = Door::open_with(json!({}), script).await;
    let body = json!({"prompt": "x", "stream": true, "max_tokens": 500_000, "logprobs": 20});
    let stream = open(door.address, "/v1/completions", &body).await;
    let wait = door.fake.wait_log(|log| log.cancels.len() == 1);
    tokio::time::timeout(HANG, wait)
        .await
        .expect("the request is cancelled");
    let events = rest(stream).await.events();
    let error = events.last().unwrap()["error"]["message"].as_str().unwrap();
    assert!(error.contains("unread"), "{error}");
}
