//! Connections that replicas close between two requests.

use http_body_util::BodyExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::{Door, chat};

/// One request, with a body that is shorter than a buffer; `None` at the end of the connection.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        let is_whole = match text.split_once("\r\n\r\n") {
            Some((head, body)) => head.starts_with("GET") || body.ends_with('}'),
            None => false,
        };
        if is_whole {
            return Some(text);
        }
        if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}

/// A replica that answers the first request of each connection, and closes it at the second.
async fn closing() -> (String, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                request(&mut stream).await?;
                let body = r#"{"data":[{"id":"m"}]}"#;
                let length = body.len();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.ok()?;
                request(&mut stream).await
            });
        }
    });
    (url, serving)
}

#[tokio::test]
async fn a_closed_connection_is_no_failure_of_its_replica() {
    let (url, serving) = closing().await;
    let pool = json!({"name": "p", "source": {"static": [{"url": url}]},
                      "fleet": {"slow_start_s": 0, "breaker": {"failures": 1}}});
    let door = Door::with(json!({"pools": [pool], "retries": 0})).await;
    for n in 0..40 {
        let body = chat(&n.to_string()).to_string();
        let answer = door.begin("/v1/chat/completions", &[], body).await;
        assert_eq!(answer.status(), 200, "{n}");
        answer.into_body().collect().await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    let page = door.get("/metrics").await.text();
    let count = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    assert!(count("penstock:gateway_stale_connections_total") >= 15);
    assert_eq!(count("penstock:gateway_attempts_lost_total"), 0);
    serving.abort();
}
