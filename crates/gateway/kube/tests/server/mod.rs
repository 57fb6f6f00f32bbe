#![allow(dead_code, clippy::unwrap_used)]
//! A server on the loopback interface that answers each request by a script, byte by byte. Answers
//! of a real API server are in `recorded/` (`python -m tests.kubernetes.record`).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock_kube::Cluster;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

pub(crate) const PODS_LIST: &str = include_str!("../recorded/pods-list-1.36.3.json");
pub(crate) const PODS_PAGE: &str = include_str!("../recorded/pods-page-1.36.3.json");
pub(crate) const PODS_WATCH: &str = include_str!("../recorded/pods-watch-1.36.3.json");
pub(crate) const PODS_GONE: &str = include_str!("../recorded/pods-gone-1.36.3.json");
pub(crate) const POOLS_LIST: &str = include_str!("../recorded/pools-list-1.36.3.json");
pub(crate) const POOLS_WATCH: &str = include_str!("../recorded/pools-watch-1.36.3.json");

/// What comes next on the connection. Behind the last step the answer ends as it should.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Status(u16),
    /// One chunk of the body.
    Send(Vec<u8>),
    /// Until the client goes.
    Hang,
    /// The connection ends here.
    Cut,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) target: String,
    pub(crate) authorization: Option<String>,
}

impl Request {
    pub(crate) fn is_watch(&self) -> bool {
        self.target.contains("watch=true")
    }

    /// The value of a member of the query, as it is written there.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        let query = self.target.split_once('?')?.1;
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    }
}

pub(crate) fn page(body: impl Into<Vec<u8>>) -> Vec<Step> {
    vec![Step::Status(200), Step::Send(body.into())]
}

pub(crate) fn refusal(status: u16, message: &str) -> Vec<Step> {
    let body = format!(r#"{{"kind": "Status", "code": {status}, "message": "{message}"}}"#);
    vec![Step::Status(status), Step::Send(body.into())]
}

/// A watch that goes on without another word.
pub(crate) fn events(body: impl Into<Vec<u8>>) -> Vec<Step> {
    vec![Step::Status(200), Step::Send(body.into()), Step::Hang]
}

type Script = dyn Fn(&Request) -> Vec<Step> + Send + Sync;

/// It ends with the value.
pub(crate) struct ApiServer {
    pub(crate) address: String,
    requests: Arc<Mutex<Vec<Request>>>,
    task: JoinHandle<()>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ApiServer {
    pub(crate) async fn start(
        script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::start_at("127.0.0.1:0", script).await
    }

    pub(crate) async fn start_at(
        address: &str,
        script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let began = Instant::now();
        let listener = loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener,
                Err(error) => assert!(began.elapsed() < HANG, "{address}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let address = listener.local_addr().unwrap().to_string();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let task = tokio::spawn(serve(listener, Arc::new(script), requests.clone()));
        Self {
            address,
            requests,
            task,
        }
    }

    pub(crate) fn cluster(&self) -> Cluster {
        Cluster {
            server: format!("http://{}", self.address),
            ..Cluster::default()
        }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    pub(crate) fn watches(&self) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(Request::is_watch);
        requests
    }
}

pub(crate) const HANG: Duration = Duration::from_secs(300);

/// Waits until it is so.
pub(crate) async fn until(what: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < HANG, "not within {HANG:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn serve(listener: TcpListener, script: Arc<Script>, requests: Arc<Mutex<Vec<Request>>>) {
    // Connections end with the server.
    let mut open = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (script, requests) = (script.clone(), requests.clone());
        open.spawn(async move {
            let _ = answer(stream, &*script, &requests).await;
        });
    }
}

async fn answer(
    mut stream: TcpStream,
    script: &Script,
    requests: &Mutex<Vec<Request>>,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let authorization = head.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        let found = name.eq_ignore_ascii_case("authorization");
        found.then(|| value.to_owned())
    });
    let request = Request {
        target: head.split(' ').nth(1).unwrap_or_default().to_owned(),
        authorization,
    };
    requests.lock().unwrap().push(request.clone());
    for step in script(&request) {
        match step {
            Step::Status(status) => {
                let head = format!(
                    "HTTP/1.1 {status} S\r\ncontent-type: application/json\r\n\
                     connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await?;
            }
            Step::Send(bytes) => {
                let head = format!("{:x}\r\n", bytes.len());
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(&bytes).await?;
                stream.write_all(b"\r\n").await?;
            }
            Step::Hang => {
                let _ = stream.read_u8().await;
                return Ok(());
            }
            Step::Cut => return Ok(()),
        }
    }
    stream.write_all(b"0\r\n\r\n").await
}
