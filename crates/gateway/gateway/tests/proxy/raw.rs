//! A replica that answers with bytes of its own, whatever HTTP says.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// It listens until it is dropped.
pub(crate) struct RawReplica {
    pub(crate) url: String,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for RawReplica {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl RawReplica {
    /// Posts get these bytes, in parts; then the connection closes.
    pub(crate) async fn start(parts: Vec<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer(stream, parts.clone()));
            }
        });
        Self { url, server }
    }

    /// A stream of these bytes, which ends with its connection.
    pub(crate) async fn stream(more: &str, body: impl Into<Vec<u8>>) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{more}\r\n");
        Self::start(vec![head.into_bytes(), body.into()]).await
    }
}

async fn answer(mut stream: TcpStream, parts: Vec<Vec<u8>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.split("content-length: ").nth(1).map_or(0, |rest| {
        rest.split("\r\n").next().unwrap().parse().unwrap()
    });
    let mut body = vec![0; length];
    let _ = stream.read_exact(&mut body).await;
    if head.starts_with("get") {
        let models = r#"{"data":[{"id":"m"}]}"#;
        let text = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{models}",
            models.len()
        );
        let _ = stream.write_all(text.as_bytes()).await;
        return;
    }
    for part in parts {
        if stream.write_all(&part).await.is_err() {
            return;
        }
    }
    let _ = stream.shutdown().await;
    // what the client still sends is read: a reset would take the answer along
    let _ = stream.read_to_end(&mut body).await;
}
