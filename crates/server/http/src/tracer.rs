//! Spans of requests, exported by OTLP over HTTP in its JSON format.
//!
//! Spans pass a bounded queue to one task, which sends them in batches. A span that finds the queue
//! full, or whose batch the collector does not take, is dropped and counted; requests never wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use axum::body::Bytes;
use axum::http::{Request, Uri, header};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::span::{Span, body};
use crate::trace_context::SAMPLED;
use crate::{Client, Page, RandomIds, SpanKind, TraceContext, shown_url};

/// Maximum number of spans that wait for the exporter.
const QUEUE: usize = 2048;
/// Maximum number of spans in one export request.
const BATCH: usize = 512;
/// Time that a span waits for others in its batch.
const GATHERING: Duration = Duration::from_secs(1);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum interval between lines of the log about failed exports.
const REPORT: Duration = Duration::from_secs(60);
/// Maximum bytes of a collector's answer that are read.
const MOST_ANSWER: usize = 64 << 10;
/// The standard path of collectors, used if the endpoint has none.
const PATH: &str = "/v1/traces";

/// Starts traces and exports their spans. Clones share the exporter.
#[derive(Debug, Clone)]
pub struct Tracer(Arc<TracerState>);

#[derive(Debug)]
struct TracerState {
    messages: mpsc::Sender<Message>,
    dropped: Arc<AtomicU64>,
    ids: RandomIds,
}

#[derive(Debug)]
enum Message {
    Span(Box<Span>),
    /// Export what is queued, then answer.
    Flush(oneshot::Sender<()>),
}

impl Tracer {
    /// Starts the exporter on the current tokio runtime. `service` names this process in traces.
    ///
    /// # Errors
    /// `endpoint` is no URL of a collector; the text has the remedy.
    pub fn start(endpoint: &str, service: &str, version: &str) -> Result<Self, String> {
        let endpoint = collector(endpoint)?;
        let client = Client::new(CONNECT_TIMEOUT).map_err(|error| error.to_string())?;
        let (messages, waiting) = mpsc::channel(QUEUE);
        let dropped = Arc::<AtomicU64>::default();
        let exporter = Exporter {
            client,
            endpoint,
            resource: vec![
                ("service.name", service.into()),
                ("service.version", version.into()),
            ],
            dropped: dropped.clone(),
            reported: None,
        };
        tokio::spawn(exporter.run(waiting));
        Ok(Self(Arc::new(TracerState {
            messages,
            dropped,
            ids: RandomIds::default(),
        })))
    }

    /// Starts the span of a request that arrived now: a child of the client's span, or the root of
    /// a new trace. `None` if the client does not export its trace.
    pub fn request(&self, name: String, client: Option<&TraceContext>) -> Option<OpenSpan> {
        let clock = Clock(Instant::now(), SystemTime::now());
        let (parent, context) = match client {
            Some(client) if !client.is_sampled() => return None,
            Some(client) => (Some(client.span_id), client.clone()),
            None => (None, self.root()),
        };
        let place = SpanParent {
            tracer: self.clone(),
            context,
            clock,
        };
        Some(place.open(parent, name, SpanKind::Server, clock.0))
    }

    /// Waits until the collector has the spans so far, for at most `patience`.
    pub async fn flush(&self, patience: Duration) {
        let (done, wait) = oneshot::channel();
        let flushed = async {
            if self.0.messages.send(Message::Flush(done)).await.is_ok() {
                let _ = wait.await;
            }
        };
        let _ = tokio::time::timeout(patience, flushed).await;
    }

    /// Writes the tracer's metrics.
    pub fn render(&self, page: &mut Page<'_>) {
        page.counter(
            "penstock:trace_spans_dropped_total",
            "Spans that did not reach the collector of --otlp-traces-endpoint.",
            self.0.dropped.load(Ordering::Relaxed),
        );
    }

    fn root(&self) -> TraceContext {
        let half = || u128::from(self.0.ids.next());
        TraceContext {
            trace_id: (half() << 64 | half()).max(1),
            span_id: 0,
            flags: SAMPLED,
            state: String::new(),
        }
    }

    fn record(&self, span: Span) {
        let message = Message::Span(Box::new(span));
        if self.0.messages.try_send(message).is_err() {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One instant on both clocks, so that the spans of a request are consistent.
#[derive(Debug, Clone, Copy)]
struct Clock(Instant, SystemTime);

impl Clock {
    fn unix(&self, at: Instant) -> SystemTime {
        match at.checked_duration_since(self.0) {
            Some(after) => self.1 + after,
            None => self.1 - (self.0 - at),
        }
    }
}

/// A span as the parent of others.
#[derive(Debug, Clone)]
pub struct SpanParent {
    tracer: Tracer,
    context: TraceContext,
    clock: Clock,
}

impl SpanParent {
    /// Starts a span within this one.
    pub fn child(&self, name: String, kind: SpanKind, start: Instant) -> OpenSpan {
        self.open(Some(self.context.span_id), name, kind, start)
    }

    fn open(&self, parent: Option<u64>, name: String, kind: SpanKind, start: Instant) -> OpenSpan {
        let mut place = self.clone();
        place.context.span_id = self.tracer.0.ids.next().max(1);
        OpenSpan {
            place,
            parent,
            name,
            kind,
            start,
            end: None,
            attributes: Vec::new(),
            error: None,
        }
    }
}

/// A span that has not ended; it ends, and is exported, when it is dropped.
#[derive(Debug)]
pub struct OpenSpan {
    place: SpanParent,
    parent: Option<u64>,
    name: String,
    kind: SpanKind,
    start: Instant,
    end: Option<Instant>,
    attributes: Vec<(&'static str, Value)>,
    error: Option<String>,
}

impl OpenSpan {
    pub fn parent(&self) -> SpanParent {
        self.place.clone()
    }

    /// The context for requests that are part of this span.
    pub fn context(&self) -> &TraceContext {
        &self.place.context
    }

    /// Sets an attribute, unless its value is null.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        let value = value.into();
        if !value.is_null() {
            self.attributes.push((key, value));
        }
    }

    /// Marks the work as failed. `kind` is a word or a status code.
    pub fn fail(&mut self, kind: impl ToString) {
        let kind = kind.to_string();
        self.set("error.type", kind.as_str());
        self.error = Some(kind);
    }

    /// Ends the span at an instant in the past.
    pub fn end_at(mut self, at: Instant) {
        self.end = Some(at);
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let clock = self.place.clock;
        self.place.tracer.record(Span {
            context: self.place.context.clone(),
            parent: self.parent,
            name: std::mem::take(&mut self.name),
            kind: self.kind,
            start: clock.unix(self.start),
            end: clock.unix(self.end.unwrap_or_else(Instant::now)),
            attributes: std::mem::take(&mut self.attributes),
            error: self.error.take(),
        });
    }
}

/// The URL that export requests are sent to.
fn collector(endpoint: &str) -> Result<Uri, String> {
    let uri: Option<Uri> = endpoint.parse().ok();
    let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
    let Some(uri) = uri else {
        return Err(format!(
            "otlp_traces_endpoint {:?} is not like http://collector:4318{PATH}: traces are sent by \
             OTLP over HTTP",
            shown_url(endpoint)
        ));
    };
    match uri.path() {
        "" | "/" => format!("{}{PATH}", endpoint.trim_end_matches('/'))
            .parse()
            .map_err(|error| format!("otlp_traces_endpoint: {error}")),
        _ => Ok(uri),
    }
}

/// Receives spans from the queue, and sends them to the collector.
struct Exporter {
    client: Client,
    endpoint: Uri,
    resource: Vec<(&'static str, Value)>,
    dropped: Arc<AtomicU64>,
    /// Time of the last log line about a failure.
    reported: Option<Instant>,
}

impl Exporter {
    async fn run(mut self, mut waiting: mpsc::Receiver<Message>) {
        let mut batch = Vec::new();
        while let Some(first) = waiting.recv().await {
            let mut next = Some(first);
            let mut flushed = None;
            let full = tokio::time::sleep(GATHERING);
            tokio::pin!(full);
            while let Some(message) = next {
                match message {
                    Message::Span(span) => batch.push(*span),
                    Message::Flush(done) => flushed = Some(done),
                }
                if flushed.is_some() || batch.len() == BATCH {
                    break;
                }
                next = tokio::select! {
                    message = waiting.recv() => message,
                    () = &mut full => None,
                };
            }
            self.export(&mut batch).await;
            if let Some(done) = flushed {
                let _ = done.send(());
            }
        }
    }

    async fn export(&mut self, batch: &mut Vec<Span>) {
        if batch.is_empty() {
            return;
        }
        let sent = tokio::time::timeout(EXPORT_TIMEOUT, self.send(body(&self.resource, batch)));
        let sent = sent
            .await
            .unwrap_or_else(|_| Err("no answer in time".to_owned()));
        let count = batch.len() as u64;
        batch.clear();
        let Err(error) = sent else {
            return;
        };
        let all = self.dropped.fetch_add(count, Ordering::Relaxed) + count;
        if self.reported.is_none_or(|at| at.elapsed() >= REPORT) {
            self.reported = Some(Instant::now());
            let endpoint = shown_url(&self.endpoint.to_string());
            warn!("traces: {endpoint}: {error}; {all} spans were dropped so far");
        }
    }

    async fn send(&self, body: Vec<u8>) -> Result<(), String> {
        let request = Request::post(self.endpoint.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Bytes::from(body))
            .map_err(|error| error.to_string())?;
        let answer = self.client.send(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let status = answer.status();
        // The body is read, so that the next batch can reuse the connection.
        let _ = Limited::new(answer.into_body(), MOST_ANSWER)
            .collect()
            .await;
        match status.is_success() {
            true => Ok(()),
            false => Err(format!("answered {status}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::State;
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::post;
    use tokio::net::TcpListener;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    async fn listener() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        (listener, url)
    }

    /// Starts a collector that answers with `status`; returns its URL and the bodies that it gets.
    async fn collecting(status: StatusCode) -> (String, UnboundedReceiver<Value>) {
        type Bodies = UnboundedSender<Value>;
        let take = async move |State(bodies): State<Bodies>, headers: HeaderMap, body: Bytes| {
            assert_eq!(headers["content-type"], "application/json");
            let _ = bodies.send(serde_json::from_slice(&body).unwrap());
            status
        };
        let (bodies, got) = unbounded_channel();
        let router = Router::new().route(PATH, post(take)).with_state(bodies);
        let (listener, url) = listener().await;
        tokio::spawn(async move { axum::serve(listener, router).await });
        (url, got)
    }

    fn client(flags: u8) -> TraceContext {
        TraceContext {
            trace_id: 0xabc,
            span_id: 0xdef,
            flags,
            state: "a=b".to_owned(),
        }
    }

    #[tokio::test]
    async fn spans_reach_the_collector_with_their_parents() {
        let (url, mut bodies) = collecting(StatusCode::OK).await;
        let tracer = Tracer::start(&url, "test", "1.2").unwrap();
        let mut span = tracer
            .request("GET /x".to_owned(), Some(&client(1)))
            .unwrap();
        span.set("a", "text");
        span.set("b", 7);
        span.set("c", 0.5);
        span.set("d", true);
        span.set("e", vec!["x"]);
        span.set("f", None::<u8>);
        let now = Instant::now();
        let mut child = span
            .parent()
            .child("part".to_owned(), SpanKind::Internal, now);
        child.fail(503);
        child.end_at(now + Duration::from_millis(2));
        drop(span);
        tracer.flush(PATIENCE).await;
        let body = bodies.try_recv().unwrap();
        let of = &body["resourceSpans"][0];
        let resource = of["resource"]["attributes"].to_string();
        assert!(resource.contains(r#"{"key":"service.name","value":{"stringValue":"test"}}"#));
        let spans = &of["scopeSpans"][0]["spans"];
        let (child, span) = (&spans[0], &spans[1]);
        for one in [span, child] {
            assert_eq!(one["traceId"], "00000000000000000000000000000abc");
            assert_eq!(one["traceState"], "a=b");
        }
        assert_eq!(span["parentSpanId"], "0000000000000def");
        assert_eq!(span["name"], "GET /x");
        assert_eq!((&span["kind"], &child["kind"]), (&2.into(), &1.into()));
        assert_eq!(
            span["attributes"].to_string(),
            concat!(
                r#"[{"key":"a","value":{"stringValue":"text"}},"#,
                r#"{"key":"b","value":{"intValue":"7"}},"#,
                r#"{"key":"c","value":{"doubleValue":0.5}},"#,
                r#"{"key":"d","value":{"boolValue":true}},"#,
                r#"{"key":"e","value":{"arrayValue":{"values":[{"stringValue":"x"}]}}}]"#
            )
        );
        assert!(span.get("status").is_none());
        assert_eq!(child["parentSpanId"], span["spanId"]);
        assert_eq!(child["status"]["code"], 2);
        let at = |key: &str| child[key].as_str().unwrap().parse::<u64>().unwrap();
        assert_eq!(at("endTimeUnixNano") - at("startTimeUnixNano"), 2_000_000);
    }

    #[tokio::test]
    async fn a_trace_follows_the_client_s_flag_and_begins_without_a_client() {
        let (url, _bodies) = collecting(StatusCode::OK).await;
        let tracer = Tracer::start(&url, "test", "1").unwrap();
        assert!(tracer.request(String::new(), Some(&client(0))).is_none());
        let roots = [(); 2].map(|()| tracer.request(String::new(), None).unwrap());
        let [first, second] = roots.each_ref().map(OpenSpan::context);
        assert!(first.is_sampled());
        assert_ne!(first.trace_id, second.trace_id);
        assert_ne!(first.span_id, second.span_id);
    }

    #[tokio::test]
    async fn spans_that_a_collector_refuses_are_counted() {
        let (url, mut bodies) = collecting(StatusCode::BAD_REQUEST).await;
        let tracer = Tracer::start(&url, "test", "1").unwrap();
        for _ in 0..3 {
            drop(tracer.request(String::new(), None));
        }
        tracer.flush(PATIENCE).await;
        assert!(bodies.try_recv().is_ok());
        let mut page = Page::new("");
        tracer.render(&mut page);
        assert!(
            page.out
                .ends_with("penstock:trace_spans_dropped_total{} 3\n")
        );
    }

    /// Only the flush waits for a collector that does not answer, and its wait is bounded.
    #[tokio::test]
    async fn a_full_queue_drops_spans() {
        let (_listener, url) = listener().await;
        let tracer = Tracer::start(&url, "test", "1").unwrap();
        let more = 10;
        for _ in 0..QUEUE + more {
            drop(tracer.request(String::new(), None));
        }
        assert_eq!(tracer.0.dropped.load(Ordering::Relaxed), more as u64);
        tracer.flush(Duration::from_millis(1)).await;
    }

    #[test]
    fn an_endpoint_is_a_url_of_http() {
        for (endpoint, wanted) in [
            ("http://c:4318", "http://c:4318/v1/traces"),
            ("http://c:4318/", "http://c:4318/v1/traces"),
            ("https://c/x", "https://c/x"),
        ] {
            assert_eq!(collector(endpoint).unwrap().to_string(), wanted);
        }
        for odd in ["", "c:4317", "grpc://c:4317", "http://", "http://c /"] {
            let error = collector(odd).unwrap_err();
            assert!(error.contains("http://collector:4318/v1/traces"), "{error}");
        }
        let error = collector("grpc://user:hush@c:4317").unwrap_err();
        assert!(!error.contains("hush"), "{error}");
    }
}
