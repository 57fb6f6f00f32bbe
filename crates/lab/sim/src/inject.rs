//! Injects faults into HTTP requests and responses, above the server's endpoints.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame};
use penstock_api_types::{ApiError, sse};
use penstock_server::Failure;
use serde_json::{Value, json};

use crate::engine::NATURAL_LENGTH;
use crate::faults::FaultKind;

/// Number of tokens of a completion without `max_tokens`.
const COMPLETION_LENGTH: u64 = 16;

/// Factor that determines the length of an answer to a request without `max_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lengths {
    Completions,
    Chat,
    Drawn,
}

/// Handles the request and injects `fault` into it or into its response.
pub(crate) async fn inject(
    fault: FaultKind,
    lengths: Lengths,
    request: Request<Body>,
    next: Next,
) -> Response {
    let request = match fault {
        FaultKind::Refuse => return Failure(ApiError::queue_full(1)).into_response(),
        FaultKind::Status(status) => {
            let mut error = ApiError::internal("A fault on purpose.");
            error.status = status;
            return Failure(error).into_response();
        }
        FaultKind::EarlyStop(tokens) => match shortened(request, lengths, tokens).await {
            Ok(request) => request,
            Err(unharmed) => return next.run(unharmed).await,
        },
        _ => request,
    };
    let response = next.run(request).await;
    if response.status() != StatusCode::OK {
        return response;
    }
    let kind = response.headers().get(header::CONTENT_TYPE);
    let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    match fault {
        FaultKind::SlowHeaders(delay) => {
            tokio::time::sleep(delay).await;
            response
        }
        FaultKind::ErrorEvent(0) => Failure(failed()).into_response(),
        FaultKind::Stall(0) => std::future::pending().await,
        _ if is_stream => response.map(|body| Body::new(FaultyStream::new(body, fault))),
        _ => whole(response, fault).await,
    }
}

fn failed() -> ApiError {
    ApiError::engine_failed("a fault on purpose")
}

/// The request, limited to `tokens` tokens. `Err` returns the request unchanged, if it is shorter
/// anyway.
async fn shortened(
    request: Request<Body>,
    lengths: Lengths,
    tokens: u32,
) -> Result<Request<Body>, Request<Body>> {
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes());
    let bytes = bytes.unwrap_or_default();
    let mut body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let natural = match (lengths, body.get("max_tokens")) {
        (Lengths::Drawn, _) => u64::MAX,
        (Lengths::Completions, None) => COMPLETION_LENGTH,
        _ => NATURAL_LENGTH.into(),
    };
    let newer = body.get("max_completion_tokens").and_then(Value::as_u64);
    let asked = newer.or_else(|| body.get("max_tokens").and_then(Value::as_u64));
    if asked.unwrap_or(natural) <= tokens.into() || !body.is_object() {
        return Err(Request::from_parts(parts, bytes.into()));
    }
    body["max_completion_tokens"] = Value::Null;
    body["max_tokens"] = tokens.into();
    if body.get("min_tokens").and_then(Value::as_u64) > Some(tokens.into()) {
        body["min_tokens"] = tokens.into();
    }
    Ok(Request::from_parts(parts, body.to_string().into()))
}

/// Applies `fault` to a response that is not a stream. A fault after some number of tokens takes
/// effect when the answer is complete.
async fn whole(response: Response, fault: FaultKind) -> Response {
    let (mut parts, body) = response.into_parts();
    let bytes = body.collect().await.map(|body| body.to_bytes());
    let bytes = bytes.unwrap_or_default();
    let mut body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let tokens = body["usage"]["completion_tokens"].as_u64();
    let strikes = |after: u32| tokens > Some(after.into());
    match fault {
        FaultKind::ErrorEvent(after) if strikes(after) => return Failure(failed()).into_response(),
        FaultKind::Stall(after) if strikes(after) => return std::future::pending().await,
        FaultKind::Cut(after) if strikes(after) => {
            return Response::new(Body::new(FaultyStream::cut()));
        }
        FaultKind::NoFinish | FaultKind::EarlyStop(_) => rewrite_finish(&mut body, fault),
        _ => return Response::from_parts(parts, bytes.into()),
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body.to_string().into())
}

fn rewrite_finish(body: &mut Value, fault: FaultKind) {
    for choice in body["choices"].as_array_mut().into_iter().flatten() {
        let finish = &mut choice["finish_reason"];
        match fault {
            FaultKind::NoFinish => *finish = Value::Null,
            FaultKind::EarlyStop(_) if finish == "length" => *finish = json!("stop"),
            _ => {}
        }
    }
}

/// An event stream into which a fault is injected.
struct FaultyStream {
    inner: Body,
    fault: FaultKind,
    /// Bytes of an event that is not complete yet.
    pending: BytesMut,
    out: BytesMut,
    /// Number of tokens sent so far.
    sent: u32,
    end: Option<End>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Complete,
    Cut,
    Stalled,
}

impl FaultyStream {
    fn new(inner: Body, fault: FaultKind) -> Self {
        Self {
            inner,
            fault,
            pending: BytesMut::new(),
            out: BytesMut::new(),
            sent: 0,
            end: None,
        }
    }

    /// A body whose connection is dropped immediately.
    fn cut() -> Self {
        Self {
            end: Some(End::Cut),
            ..Self::new(Body::empty(), FaultKind::Cut(0))
        }
    }

    fn take(&mut self, data: &[u8]) {
        self.pending.extend_from_slice(data);
        while self.end.is_none()
            && let Some(length) = self.pending.windows(2).position(|pair| pair == b"\n\n")
        {
            let event = self.pending.split_to(length + 2);
            self.event(&event);
        }
    }

    /// Forwards an event, changed if the fault requires it, or ends the stream.
    fn event(&mut self, event: &[u8]) {
        let data = event.strip_prefix(b"data: ").unwrap_or_default();
        let mut body: Value = serde_json::from_slice(data).unwrap_or_default();
        let ends = body["choices"][0]["finish_reason"].is_string();
        if has_text(&body["choices"][0]) || ends {
            self.strike();
            self.sent += 1;
        }
        let counts = body["choices"].as_array().is_some_and(Vec::is_empty);
        match self.fault {
            _ if self.end.is_some() => {}
            FaultKind::NoUsage if counts => {}
            FaultKind::NoFinish | FaultKind::EarlyStop(_) if ends => {
                rewrite_finish(&mut body, self.fault);
                self.out
                    .extend_from_slice(format!("data: {body}\n\n").as_bytes());
            }
            _ => self.out.extend_from_slice(event),
        }
    }

    /// Applies the fault if it is due before the next token.
    fn strike(&mut self) {
        match self.fault {
            FaultKind::ErrorEvent(after) if self.sent == after => {
                sse::error(&mut self.out, &failed());
                sse::done(&mut self.out);
                self.finish(End::Complete);
            }
            FaultKind::Cut(after) if self.sent == after => self.finish(End::Cut),
            FaultKind::Stall(after) if self.sent == after => self.end = Some(End::Stalled),
            FaultKind::Malformed(after) if self.sent == after => {
                let broken = b"data: {\"id\": \"on purpose\", \"cho\n\n";
                self.out.extend_from_slice(broken);
            }
            _ => {}
        }
    }

    /// Ends the stream. This drops the server's body, which cancels the request.
    fn finish(&mut self, end: End) {
        self.end = Some(end);
        self.inner = Body::empty();
    }
}

/// Whether a choice has text.
fn has_text(choice: &Value) -> bool {
    let text = choice["text"].as_str();
    let text = text.or_else(|| choice["delta"]["content"].as_str());
    text.is_some_and(|text| !text.is_empty())
}

impl HttpBody for FaultyStream {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            if self.out.has_remaining() {
                return Poll::Ready(Some(Ok(Frame::data(self.out.split().freeze()))));
            }
            match self.end {
                Some(End::Complete) => return Poll::Ready(None),
                Some(End::Stalled) => return Poll::Pending,
                Some(End::Cut) => {
                    let broken = io::Error::from(io::ErrorKind::ConnectionAborted);
                    return Poll::Ready(Some(Err(axum::Error::new(broken))));
                }
                None => {}
            }
            match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.take(&data);
                    }
                }
                None => self.end = Some(End::Complete),
            }
        }
    }
}
