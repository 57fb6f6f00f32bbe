//! Bodies that no endpoint reads: the connection answers on, or says that it closes.

use std::time::Duration;

use penstock_engine_client::testing::{Script, tokens};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::{read_until, rest};
use crate::door::Door;

/// What is rejected without its body: request line, headers, status.
const REJECTED: [(&str, &str, u16); 5] = [
    ("POST /v1/completions", "", 401),
    ("POST /v1/nothing", "authorization: Bearer k\r\n", 404),
    ("GET /v1/completions", "authorization: Bearer k\r\n", 405),
    ("GET /v1/models", "authorization: Bearer k\r\n", 200),
    (
        "POST /v1/completions",
        "authorization: Bearer k\r\ncontent-encoding: gzip\r\n",
        415,
    ),
];

async fn door() -> Door {
    let script = Script::new(|_| tokens(&[97], Duration::ZERO));
    Door::open_with(
        json!({"api_keys": ["k"], "limits": {"max_body_bytes": 2000}}),
        script,
    )
    .await
}

async fn sent(door: &Door, line: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let head = format!("{line} HTTP/1.1\r\nhost: x\r\n{headers}content-length: 1000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

fn closes(head: &str) -> bool {
    head.to_ascii_lowercase().contains("connection: close")
}

#[tokio::test]
async fn a_body_that_comes_late_leaves_the_connection_usable() {
    let door = door().await;
    for (line, headers, status) in REJECTED {
        let mut stream = sent(&door, line, headers).await;
        for part in [400, 600] {
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all(&vec![b'x'; part]).await.unwrap();
        }
        let head = read_until(&mut stream, "\r\n\r\n").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(!closes(&head), "{line}: {head}");
        let next = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(next.as_bytes()).await.unwrap();
        read_until(&mut stream, "HTTP/1.1 200 OK").await;
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_closes_the_connection_by_a_header() {
    let door = door().await;
    for (line, headers, status) in REJECTED {
        let reply = rest(sent(&door, line, headers).await).await;
        assert_eq!(reply.status, status, "{}", reply.head);
        assert!(closes(&reply.head), "{line}: {}", reply.head);
    }
}

#[tokio::test]
async fn a_client_that_waits_to_continue_is_not_told_to() {
    let door = door().await;
    for (line, headers, status) in REJECTED {
        let headers = format!("{headers}expect: 100-continue\r\n");
        let reply = rest(sent(&door, line, &headers).await).await;
        assert_eq!(reply.status, status, "{}", reply.head);
        assert!(closes(&reply.head), "{line}: {}", reply.head);
    }
}

#[tokio::test]
async fn a_body_whose_time_is_up_is_not_drained() {
    let script = Script::new(|_| tokens(&[97], Duration::ZERO));
    let patch = json!({"limits": {"body_timeout_s": 0.2}});
    let door = Door::open_with(patch, script).await;
    let (mut reader, mut writer) = sent(&door, "POST /v1/completions", "").await.into_split();
    // The body takes a second, without a pause that would end a drain.
    let drip = tokio::spawn(async move {
        while writer.write_all(&[b' '; 20]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut bytes = Vec::new();
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        assert!(reader.read_buf(&mut bytes).await.unwrap() > 0);
    }
    let head = String::from_utf8_lossy(&bytes);
    assert!(head.starts_with("HTTP/1.1 408 ") && closes(&head), "{head}");
    drip.abort();
}
