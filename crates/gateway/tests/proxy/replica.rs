//! A replica of a few lines: it answers as it is set, and keeps what it was sent.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// How it answers requests for text.
#[derive(Debug, Clone)]
pub(crate) enum Answers {
    /// The whole body back, as JSON with a usage.
    Whole,
    Status(u16, &'static str),
    /// So many events, so far apart.
    Events(usize, Duration),
    /// As many, then the connection breaks.
    Breaks(usize),
    /// Nothing, until the client leaves.
    Hangs,
}

/// What a request looked like.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

#[derive(Debug)]
struct Shared {
    answers: Mutex<Answers>,
    models: Vec<&'static str>,
    seen: Mutex<Vec<Seen>>,
    healthy: AtomicBool,
    metrics: Mutex<String>,
    /// Requests that it is answering.
    open: AtomicUsize,
}

/// A replica that listens until it is dropped.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) url: String,
    shared: Arc<Shared>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Counts a request until its answer is gone.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Replica {
    pub(crate) async fn start(answers: Answers, models: &[&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            answers: Mutex::new(answers),
            models: models.to_vec(),
            seen: Mutex::default(),
            healthy: AtomicBool::new(true),
            metrics: Mutex::default(),
            open: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/health", get(health))
            .route("/v1/models", get(models_page))
            .route("/metrics", get(metrics))
            .fallback(post(answer))
            .layer(DefaultBodyLimit::disable())
            .with_state(shared.clone());
        let serving = async move { axum::serve(listener, router).await.unwrap() };
        Self {
            url,
            shared,
            server: tokio::spawn(serving),
        }
    }

    pub(crate) fn answers(&self, answers: Answers) {
        *self.shared.answers.lock().unwrap() = answers;
    }

    /// What its health check says from now on.
    pub(crate) fn healthy(&self, healthy: bool) {
        self.shared.healthy.store(healthy, Ordering::SeqCst);
    }

    /// Its metrics page from now on.
    pub(crate) fn metrics(&self, page: impl Into<String>) {
        *self.shared.metrics.lock().unwrap() = page.into();
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

async fn health(State(shared): State<Arc<Shared>>) -> StatusCode {
    match shared.healthy.load(Ordering::SeqCst) {
        true => StatusCode::OK,
        false => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> String {
    shared.metrics.lock().unwrap().clone()
}

async fn models_page(State(shared): State<Arc<Shared>>) -> String {
    let data: Vec<Value> = shared.models.iter().map(|id| json!({"id": id})).collect();
    json!({"object": "list", "data": data}).to_string()
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.to_string();
    let seen = Seen {
        path,
        headers,
        body: body.clone(),
    };
    shared.seen.lock().unwrap().push(seen);
    shared.open.fetch_add(1, Ordering::SeqCst);
    let open = Open(shared.clone());
    let answers = shared.answers.lock().unwrap().clone();
    match answers {
        Answers::Whole => {
            let body: Value = serde_json::from_slice(&body).unwrap();
            let usage = json!({"prompt_tokens": 7, "completion_tokens": 3});
            let text = json!({"echo": body, "usage": usage}).to_string();
            ([("content-type", "application/json")], text).into_response()
        }
        Answers::Status(status, text) => {
            let status = StatusCode::from_u16(status).unwrap();
            (status, [("retry-after", "7")], text).into_response()
        }
        Answers::Events(count, gap) => events(open, count, gap, false),
        Answers::Breaks(count) => events(open, count, Duration::ZERO, true),
        Answers::Hangs => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            drop(open);
            StatusCode::OK.into_response()
        }
    }
}

fn events(open: Open, count: usize, gap: Duration, breaks: bool) -> Response {
    let parts = stream::unfold((open, 0), move |(open, at)| async move {
        tokio::time::sleep(gap).await;
        let part = match at {
            at if at < count => Ok(Bytes::from(format!("data: {{\"at\":{at}}}\n\n"))),
            at if at == count && breaks => Err(std::io::Error::other("broken")),
            at if at == count => Ok(Bytes::from("data: [DONE]\n\n")),
            _ => return None,
        };
        Some((part, (open, at + 1)))
    });
    let response = (
        [("content-type", "text/event-stream")],
        Body::from_stream(parts),
    );
    response.into_response()
}
