//! The body of an answer on its way from the replica to the client.
//!
//! Bytes go through as they come, pulled by the client's connection: a client that does not read
//! stops the replica's stream, too. What is learned on the way goes to the fleet.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Bytes;
use axum::http::header;
use axum::http::response::Parts;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use penstock_fleet::Outcome;
use penstock_http::{Level, log};
use penstock_openai::{ApiError, anthropic_error};

use crate::call::Call;
use crate::gateway::{Gateway, Place};
use crate::models::Destination;
use crate::pool::{Pool, Routed};
use crate::rename::Rename;
use crate::usage::{UsageReader, events};

/// An answer.
pub(crate) struct Relayed {
    body: Incoming,
    /// Until the answer has ended.
    routed: Option<Routed>,
    gateway: Arc<Gateway>,
    pool: Arc<Pool>,
    call: Call,
    arrived: Instant,
    /// An event stream: it can carry an error after its first byte.
    is_stream: bool,
    /// The replica's own fault.
    is_failure: bool,
    usage: UsageReader,
    /// The name of the model is that which was asked for.
    rename: Option<Rename>,
    first: bool,
    _place: Place,
}

impl Relayed {
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        call: Call,
        destination: &Destination,
        routed: Routed,
        body: Incoming,
        parts: &mut Parts,
        place: Place,
        arrived: Instant,
    ) -> Self {
        let kind = parts.headers.get(header::CONTENT_TYPE);
        let kind = kind.map(|kind| kind.as_bytes()).unwrap_or_default();
        let is_stream = kind.starts_with(b"text/event-stream");
        let asked = call.asked.as_deref().unwrap_or_default();
        let rename = destination.renamed.as_deref();
        let rename = rename.map(|renamed| Rename::new(renamed, asked));
        if rename.is_some() {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        Self {
            body,
            routed: Some(routed),
            gateway,
            pool: destination.pool.clone(),
            call,
            arrived,
            is_stream,
            rename,
            is_failure: parts.status.is_server_error(),
            usage: UsageReader::default(),
            first: true,
            _place: place,
        }
    }

    fn see(&mut self, bytes: &[u8]) {
        self.usage.see(bytes);
        if self.is_stream
            && let Some(routed) = &mut self.routed
        {
            if std::mem::take(&mut self.first) {
                self.gateway.metrics.first_token(self.arrived.elapsed());
            }
            routed.in_flight.first_token();
            routed.in_flight.tokens(events(bytes));
        }
    }

    /// The end of the answer, once.
    fn end(&mut self, outcome: Outcome) {
        let Some(routed) = self.routed.take() else {
            return;
        };
        if let Some(usage) = self.usage.usage() {
            self.pool.learn(self.call.prompt.bytes, usage.prompt_tokens);
            if let Some(caller) = &self.call.caller {
                let tokens = usage.prompt_tokens.saturating_add(usage.completion_tokens);
                caller.usage.spend(tokens);
            }
        }
        self.gateway.metrics.ended(&self.pool.name, outcome);
        routed.in_flight.end(outcome);
    }

    /// What a client gets in a stream that breaks off: an error, and the end.
    fn broken_off(&self) -> Bytes {
        let error = ApiError::engine_failed("the replica broke off its answer.");
        let (before, json, after) = match self.call.is_anthropic() {
            true => ("event: error\n", anthropic_error(&error, &self.call.id), ""),
            false => ("", error.to_json(), "data: [DONE]\n\n"),
        };
        let json = String::from_utf8_lossy(&json);
        format!("\n\n{before}data: {json}\n\n{after}").into()
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.routed.is_none() {
            return Poll::Ready(None);
        }
        let polled = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        match polled {
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref() {
                    self.see(bytes);
                }
                let rename = self.rename.as_mut();
                let frame = frame.map_data(|bytes| match rename {
                    Some(rename) => rename.pass(bytes),
                    None => bytes,
                });
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                let address = self
                    .routed
                    .as_ref()
                    .map(|one| one.decision.first().address.clone());
                let (id, address) = (&self.call.id, address.unwrap_or_default());
                log(
                    Level::Warning,
                    format!("{id}: {address} broke off its answer: {error}"),
                );
                self.end(Outcome::Failed);
                match self.is_stream {
                    true => Poll::Ready(Some(Ok(Frame::data(self.broken_off())))),
                    false => Poll::Ready(Some(Err(error))),
                }
            }
            None => {
                let outcome = match self.is_failure {
                    true => Outcome::Failed,
                    false => Outcome::Served,
                };
                self.end(outcome);
                let rest = self.rename.as_mut().map(Rename::rest);
                let rest = rest.filter(|rest| !rest.is_empty());
                Poll::Ready(rest.map(|rest| Ok(Frame::data(rest))))
            }
        }
    }

    /// True at the end of an announced length, too: nothing is asked for after it.
    fn is_end_stream(&self) -> bool {
        self.routed.is_none() || (self.rename.is_none() && self.body.is_end_stream())
    }

    /// The length of an answer that has one: it keeps its header.
    fn size_hint(&self) -> SizeHint {
        match self.rename {
            None => self.body.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}

impl Drop for Relayed {
    /// The client has left, or has all that was announced.
    fn drop(&mut self) {
        let outcome = match self.body.is_end_stream() {
            true if self.is_failure => Outcome::Failed,
            true => Outcome::Served,
            false => Outcome::ClientGone,
        };
        self.end(outcome);
    }
}
