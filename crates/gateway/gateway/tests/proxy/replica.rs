//! A replica of a few lines: it answers as it is set, and keeps what it was sent.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use futures_util::{StreamExt, stream};
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
    /// A chat of these words, so far apart.
    Says(&'static [&'static str], Duration),
    /// An answer in one piece, after a while.
    Late(Duration),
    /// Nothing, until the client leaves.
    Hangs,
    /// An answer after a while to so many at once; others are refused.
    Room(usize, Duration),
    /// A stream of [`TOLD`] without marks, which goes on behind the end of the prompt.
    Told(Fates),
    /// A stream with marks, which goes on where the request says; each request has the next fate.
    Marked(Fates),
}

/// How the streams of replicas end, one after the other; without one they end well.
pub(crate) type Fates = Arc<Mutex<VecDeque<Fate>>>;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fate {
    /// The connection breaks behind so many bytes.
    Breaks(usize),
    /// The answer ends in good order behind so many bytes.
    Ends(usize),
    /// Nothing more comes behind so many bytes.
    Hangs(usize),
    /// An error behind so many steps, said by the replica itself.
    Fails(usize),
    /// It has no marks, as those of other engines.
    Unmarked,
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
    /// The key that it wants for all but its health.
    key: Mutex<Option<&'static str>>,
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
            key: Mutex::default(),
            seen: Mutex::default(),
            healthy: AtomicBool::new(true),
            metrics: Mutex::default(),
            open: AtomicUsize::new(0),
        });
        let router = Router::new()
            .route("/health", get(health))
            .route("/v1/models", get(models_page))
            .route("/metrics", get(metrics))
            .fallback(any(answer))
            .layer(from_fn_with_state(shared.clone(), keyed))
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

    /// Wants this key from now on.
    pub(crate) fn wants(&self, key: &'static str) {
        *self.shared.key.lock().unwrap() = Some(key);
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }

    pub(crate) fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

async fn keyed(State(shared): State<Arc<Shared>>, request: Request<Body>, next: Next) -> Response {
    let wanted = *shared.key.lock().unwrap();
    let wanted = wanted.map(|key| format!("Bearer {key}"));
    let given = request.headers().get("authorization");
    let known = wanted.is_none_or(|wanted| given.is_some_and(|given| *given == wanted));
    match known || request.uri().path() == "/health" {
        true => next.run(request).await,
        false => StatusCode::UNAUTHORIZED.into_response(),
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
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.to_string();
    if method == Method::GET && !path.starts_with("/v1/") {
        return StatusCode::NOT_FOUND.into_response();
    }
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
        Answers::Late(after) => {
            tokio::time::sleep(after).await;
            drop(open);
            Json(json!({"late": true})).into_response()
        }
        Answers::Whole => {
            let body: Value = serde_json::from_slice(&body).unwrap();
            let usage = json!({"prompt_tokens": 7, "completion_tokens": 3});
            let model = body["model"].clone();
            let text = json!({"model": model, "echo": body, "usage": usage}).to_string();
            ([("content-type", "application/json")], text).into_response()
        }
        Answers::Status(status, text) => {
            let status = StatusCode::from_u16(status).unwrap();
            (status, [("retry-after", "7")], text).into_response()
        }
        Answers::Events(count, gap) => events(open, count, gap, false),
        Answers::Breaks(count) => events(open, count, Duration::ZERO, true),
        Answers::Says(words, gap) => says(open, words, gap),
        Answers::Room(most, _) if shared.open.load(Ordering::SeqCst) > most => {
            (StatusCode::SERVICE_UNAVAILABLE, "full").into_response()
        }
        Answers::Room(_, after) => {
            tokio::time::sleep(after).await;
            drop(open);
            Json(json!({"late": true})).into_response()
        }
        Answers::Hangs => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            drop(open);
            StatusCode::OK.into_response()
        }
        Answers::Told(fates) => {
            let fate = fates.lock().unwrap().pop_front();
            told(open, &serde_json::from_slice(&body).unwrap(), fate)
        }
        Answers::Marked(fates) => {
            let fate = fates.lock().unwrap().pop_front();
            marked(open, &serde_json::from_slice(&body).unwrap(), fate)
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

/// An event of a chat.
pub(crate) fn word(delta: &Value, finish: &Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    let event = json!({"id": "c", "model": "m", "choices": [choice]});
    format!("data: {event}\n\n")
}

fn says(open: Open, words: &'static [&'static str], gap: Duration) -> Response {
    let said = words
        .iter()
        .map(|said| word(&json!({"content": said}), &Value::Null));
    let end = word(&json!({}), &"stop".into()) + "data: [DONE]\n\n";
    let parts: Vec<String> = said.chain([end]).collect();
    let stream = stream::iter(parts).then(move |part| async move {
        tokio::time::sleep(gap).await;
        Ok::<_, std::io::Error>(Bytes::from(part))
    });
    let stream = stream.map(move |part| (&open, part).1);
    let kind = [("content-type", "text/event-stream")];
    (kind, Body::from_stream(stream)).into_response()
}

/// Steps of a marked stream.
pub(crate) const STEPS: usize = 6;

/// The events of a step.
pub(crate) fn step(at: usize) -> String {
    format!("data: {{\"model\":\"m\",\"at\":{at}}}\n\n")
}

/// What follows the last step.
pub(crate) const END: &str = "data: {\"usage\":1}\n\ndata: [DONE]\n\n";

fn marked(open: Open, body: &Value, fate: Option<Fate>) -> Response {
    let known = body["resume"].as_array().map_or(0, |marks| marks.len() - 1);
    let mut text = match body["resume"] {
        Value::Null => ":resume {\"seed\":5}\n\n".to_owned(),
        _ => String::new(),
    };
    for at in known..STEPS {
        if matches!(fate, Some(Fate::Fails(steps)) if at == known + steps) {
            break;
        }
        text.push_str(&step(at));
        text.push_str(&format!(":resume [{at}]\n\n"));
    }
    text.push_str(match fate {
        Some(Fate::Fails(_)) => ":resume \"failed\"\n\ndata: {\"error\":1}\n\ndata: [DONE]\n\n",
        _ => END,
    });
    let mut response = sent(open, &text, fate);
    if !matches!(fate, Some(Fate::Unmarked)) {
        let headers = response.headers_mut();
        headers.insert("x-penstock-resumable", HeaderValue::from_static("1"));
    }
    response
}

/// A stream of this text, as far as its fate lets it.
fn sent(open: Open, text: &str, fate: Option<Fate>) -> Response {
    let bytes = match fate {
        Some(Fate::Breaks(bytes) | Fate::Hangs(bytes) | Fate::Ends(bytes)) => bytes.min(text.len()),
        _ => text.len(),
    };
    let parts: Vec<Bytes> = text.as_bytes()[..bytes]
        .chunks(7)
        .map(Bytes::copy_from_slice)
        .collect();
    let last = stream::once(async move {
        match fate {
            Some(Fate::Breaks(_)) => {
                // what was written before leaves first
                tokio::time::sleep(Duration::from_millis(2)).await;
                Err(std::io::Error::other("broken"))
            }
            Some(Fate::Hangs(_)) => std::future::pending().await,
            _ => Ok(Bytes::new()),
        }
    });
    let stream = stream::iter(parts.into_iter().map(Ok)).chain(last);
    // dropped with the stream
    let stream = stream.map(move |part| (&open, part).1);
    let kind = [("content-type", "text/event-stream")];
    (kind, Body::from_stream(stream)).into_response()
}

/// The words of an answer, each a token.
pub(crate) const TOLD: [&str; 6] = ["One", " two", " three", " four", " five", " six"];

/// As an engine of others streams a chat or a completion: what the prompt ends with is not said
/// again.
fn told(open: Open, body: &Value, fate: Option<Fate>) -> Response {
    let messages = body["messages"].as_array();
    let last = messages
        .and_then(|all| all.last())
        .map(|one| &one["content"]);
    let before = last.unwrap_or(&body["prompt"]).as_str().unwrap();
    let known = (0..=TOLD.len()).rev();
    let known = known
        .into_iter()
        .find(|known| before.ends_with(&TOLD[..*known].concat()));
    let (known, most) = (
        known.unwrap(),
        body["max_tokens"].as_u64().unwrap() as usize,
    );
    let left = TOLD.len() - known;
    let event = |choices: Value, usage: Value| {
        let name = format!("{known}-{left}");
        let event = json!({"id": name, "created": known, "model": "m", "choices": choices,
                           "usage": usage});
        format!("data: {event}\n\n")
    };
    let choice = |delta: Value, finish: Value| {
        let choice = match messages {
            Some(_) => json!({"index": 0, "delta": delta, "finish_reason": finish}),
            None => json!({"index": 0, "text": delta["content"], "finish_reason": finish}),
        };
        event(json!([choice]), Value::Null)
    };
    let mut text = choice(json!({"role": "assistant", "content": ""}), Value::Null);
    let said = left.min(most);
    for (at, word) in TOLD[known..known + said].iter().enumerate() {
        if matches!(fate, Some(Fate::Fails(steps)) if at == steps) {
            text.push_str("data: {\"error\":{\"message\":\"dead\"}}\n\ndata: [DONE]\n\n");
            return sent(open, &text, fate);
        }
        text.push_str(&choice(json!({"content": word}), Value::Null));
    }
    let finish = if said < left { "length" } else { "stop" };
    text.push_str(&choice(json!({"content": ""}), finish.into()));
    let usage = json!({"prompt_tokens": 7 + known, "completion_tokens": said,
                       "total_tokens": 7 + known + said});
    text.push_str(&event(json!([]), usage));
    text.push_str("data: [DONE]\n\n");
    sent(open, &text, fate)
}
