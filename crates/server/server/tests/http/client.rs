//! A client that sees every byte.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a UTF-8 body")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let find = |line: &'_ str| {
            let (key, _) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(())
        };
        let line = self.head.lines().find(|line| find(line).is_some())?;
        line.split_once(": ").map(|(_, value)| value)
    }

    /// The status and the `error` object, which must have its four members.
    pub(crate) fn error(&self) -> (u16, Value) {
        let error = self.json()["error"].clone();
        let keys: Vec<&String> = error.as_object().expect("an error object").keys().collect();
        assert_eq!(keys, ["message", "type", "param", "code"]);
        (self.status, error)
    }

    /// The JSON of every event before `[DONE]`, which must be the last.
    pub(crate) fn events(&self) -> Vec<Value> {
        let body = self
            .text()
            .strip_suffix("data: [DONE]\n\n")
            .expect("a stream that ends in [DONE]");
        let events = body.split_terminator("\n\n").map(|event| {
            let json = event
                .strip_prefix("data: ")
                .unwrap_or_else(|| panic!("not a data event: {event:?}"));
            serde_json::from_str(json).expect("JSON in an event")
        });
        events.collect()
    }
}

pub(crate) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: \
         {length}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Connects and sends a POST, and leaves the answer to be read.
pub(crate) async fn open(address: SocketAddr, path: &str, body: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream
        .write_all(&request("POST", path, "", body.to_string().as_bytes()))
        .await
        .expect("a sent request");
    stream
}

/// Sends `bytes` and reads until the server closes the connection.
pub(crate) async fn exchange(address: SocketAddr, bytes: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(bytes).await.expect("a sent request");
    rest(stream).await
}

/// Reads the answer on a connection to its end.
pub(crate) async fn rest(mut stream: TcpStream) -> Reply {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    tokio::time::timeout(Duration::from_secs(300), read)
        .await
        .expect("an answer in time")
        .expect("a readable answer");
    parse(&bytes)
}

/// Reads at least until `wanted` has come, and returns everything so far.
pub(crate) async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    // Room for everything that one write of the server holds.
    let mut bytes = Vec::with_capacity(1 << 16);
    while !String::from_utf8_lossy(&bytes).contains(wanted) {
        let read = tokio::time::timeout(Duration::from_secs(300), stream.read_buf(&mut bytes));
        let count = read
            .await
            .expect("bytes in time")
            .expect("a readable stream");
        assert!(
            count > 0,
            "the stream ended before {wanted:?}: {}",
            String::from_utf8_lossy(&bytes)
        );
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn parse(bytes: &[u8]) -> Reply {
    let split = bytes
        .windows(4)
        .position(|w| w == b"\r\n\r\n")
        .expect("a response head");
    let head = String::from_utf8(bytes[..split].to_vec()).expect("a text head");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|s| s.parse().ok())
        .expect("a status");
    let body = &bytes[split + 4..];
    let chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    Reply {
        status,
        head,
        body: if chunked {
            unchunked(body)
        } else {
            body.to_vec()
        },
    }
}

fn unchunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = bytes
            .windows(2)
            .position(|w| w == b"\r\n")
            .expect("a chunk size");
        let size = std::str::from_utf8(&bytes[..line]).expect("a text size");
        let size = usize::from_str_radix(size, 16).expect("a hexadecimal size");
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&bytes[line + 2..line + 2 + size]);
        bytes = &bytes[line + 2 + size + 2..];
    }
}
