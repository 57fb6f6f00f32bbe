//! The stream of the load, over real connections.

use std::time::Duration;

use penstock_engine_client::testing::{Action, Script};
use penstock_wire::Finish;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{exchange, read_until, request};
use crate::door::{Door, send};

const PATH: &str = "/metrics/stream";
const STREAMS: usize = 64;

/// A token, and later another one, with which it ends.
fn two_steps() -> Script {
    Script::new(|_| {
        let pause = || Action::Wait(Duration::from_millis(200));
        let token = |finish| send(&[u32::from(b'x')], finish);
        vec![pause(), token(Finish::None), pause(), token(Finish::Stop)]
    })
}

async fn open(door: &Door) -> TcpStream {
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    stream
        .write_all(&request("GET", PATH, "", b""))
        .await
        .unwrap();
    stream
}

#[tokio::test]
async fn each_step_is_a_line() {
    let door = Door::open_with(json!({"api_keys": ["k"]}), two_steps()).await;
    // as /metrics, without a key
    let mut stream = open(&door).await;
    let head = read_until(&mut stream, "\"step\":0").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(
        head.contains("content-type: application/x-ndjson"),
        "{head}"
    );
    let body = json!({"prompt": "hi", "max_tokens": 5}).to_string();
    let answer = door.keyed("POST", "/v1/completions", "k", &body);
    let (answer, lines) = tokio::join!(answer, read_until(&mut stream, "\"step\":2"));
    assert_eq!(answer.status, 200);
    // one of 1,024 blocks of 16 tokens
    for line in [
        r#"{"step":1,"waiting":0,"running":1,"kv_use":0.0009765625,"kv_tokens":16384}"#,
        r#"{"step":2,"waiting":0,"running":0,"kv_use":0.0,"kv_tokens":16384}"#,
    ] {
        assert!(lines.contains(&format!("{line}\n")), "{line} in {lines}");
    }
    let page = door.get("/metrics").await;
    let offer =
        format!("penstock:load_stream_info{{model_name=\"tiny\",engine=\"0\",path=\"{PATH}\"}} 1");
    assert!(page.text().contains(&offer), "{}", page.text());
}

#[tokio::test]
async fn streams_are_bounded() {
    let door = Door::open_with(json!({}), two_steps()).await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let mut stream = open(&door).await;
        read_until(&mut stream, "\"step\"").await;
        streams.push(stream);
    }
    let refused = exchange(door.address, &request("GET", PATH, "", b"")).await;
    assert_eq!(refused.error().0, 503);
    assert!(refused.header("retry-after").is_some());
    streams.pop();
    loop {
        let mut stream = open(&door).await;
        let answer = read_until(&mut stream, "\r\n\r\n").await;
        if answer.starts_with("HTTP/1.1 200") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_server() {
    let door = Door::open_with(json!({}), two_steps()).await;
    let mut stream = open(&door).await;
    read_until(&mut stream, "\r\n\r\n").await;
    let end = tokio::spawn(rest_of_chunks(stream));
    door.server.drain(std::future::pending()).await;
    assert!(
        end.await.unwrap().ends_with("\r\n0\r\n\r\n"),
        "the last chunk is empty"
    );
}

async fn rest_of_chunks(mut stream: TcpStream) -> String {
    use tokio::io::AsyncReadExt;
    let mut text = String::new();
    let read = tokio::time::timeout(Duration::from_secs(300), stream.read_to_string(&mut text));
    read.await.unwrap().unwrap();
    text
}
