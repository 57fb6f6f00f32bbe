//! The body of an answer on its way from the replica to the client.
//!
//! Bytes go through as they come, pulled by the client's connection: a client that does not read
//! stops the replica's stream, too. Pieces that have come together go on together. What is learned
//! on the way goes to the fleet. Where the replica marks its stream, another one goes on with it
//! when it breaks off.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Bytes;
use axum::http::header;
use axum::http::response::Parts;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use penstock_fleet::Outcome;
use penstock_http::{Gathered, Level, log};
use penstock_openai::{ApiError, RESUMABLE, anthropic_error};

use crate::attempt::Answer;
use crate::failover::{Failover, Going, Trip};
use crate::gateway::Place;
use crate::headers::is_stream;
use crate::mirror::{self, Tap};
use crate::observe::Observed;
use crate::pool::Routed;
use crate::rename::Rename;

/// An answer.
pub(crate) struct Relayed {
    source: Source,
    trip: Arc<Trip>,
    observed: Observed,
    failover: Option<Failover>,
    /// Another pool gets the request, too, and both answers are compared.
    mirror: Option<Tap>,
    /// The replica's own fault.
    is_failure: bool,
    /// The name of the model is that which was asked for.
    rename: Option<Rename>,
    _place: Place,
}

/// What the next bytes come from.
enum Source {
    Replica(Gathered<Incoming>),
    /// A replica that is to be found.
    Going(Going),
}

type Polled = Option<Result<Frame<Bytes>, hyper::Error>>;

impl Relayed {
    /// `renamed` is the model's name at the replica, if it is another than was asked for.
    pub(crate) fn new(
        trip: Trip,
        renamed: Option<&str>,
        routed: Routed,
        body: Incoming,
        parts: &mut Parts,
        place: Place,
        arrived: Instant,
    ) -> Self {
        let call = &trip.call;
        let mut observed = Observed::new(
            trip.gateway.clone(),
            trip.pool.clone(),
            call.caller.clone(),
            call.prompt.bytes,
            routed,
            arrived,
        );
        observed.began(is_stream(&parts.headers));
        let at = (&*trip.pool, trip.model.as_str());
        let mirror = mirror::begin(&trip.gateway, call, at, parts, arrived);
        let asked = call.asked.as_deref().unwrap_or_default();
        let rename = renamed.map(|renamed| Rename::new(renamed, asked));
        let failover = Failover::of(&trip, &parts.headers);
        parts.headers.remove(RESUMABLE);
        if rename.is_some() || failover.is_some() {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        Self {
            source: Source::Replica(Gathered::new(body)),
            trip: Arc::new(trip),
            observed,
            failover,
            mirror,
            rename,
            is_failure: parts.status.is_server_error(),
            _place: place,
        }
    }

    fn see(&mut self, bytes: &Bytes) {
        self.observed.see(bytes);
        if let Some(mirror) = &mut self.mirror {
            mirror.see(bytes);
        }
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(mut mirror) = self.mirror.take()
            && outcome == Outcome::Served
        {
            mirror.end();
        }
        self.observed.end(outcome);
    }

    /// What the client gets of a frame, if anything.
    fn passed(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let bytes = match frame.into_data() {
            Ok(bytes) => bytes,
            Err(other) => return Some(other),
        };
        let bytes = match &mut self.failover {
            Some(failover) => {
                failover.moves();
                failover.pass(&bytes)
            }
            None => bytes,
        };
        self.see(&bytes);
        let bytes = match &mut self.rename {
            Some(rename) => rename.pass(bytes),
            None => bytes,
        };
        (!bytes.is_empty()).then(|| Frame::data(bytes))
    }

    /// Whether the replica does nothing, and its health checks fail.
    fn hangs(&mut self, cx: &mut Context<'_>) -> bool {
        let (Some(failover), Some(routed)) = (&mut self.failover, self.observed.routed()) else {
            return false;
        };
        failover.hangs(cx, &self.trip.pool, routed.decision.first().replica)
    }

    /// Looks for another replica; false where the answer cannot go on.
    fn goes_on(&mut self, why: &str) -> bool {
        if let Some(routed) = self.observed.routed() {
            let (id, address) = (&self.trip.call.id, &routed.decision.first().address);
            let text = format!("{id}: {address} broke off its answer: {why}");
            log(Level::Warning, text);
        }
        let (Some(failover), Some(routed)) = (&mut self.failover, self.observed.routed()) else {
            return false;
        };
        let Some(going) = failover.go_on(&self.trip, routed.decision.first().replica) else {
            return false;
        };
        self.source = Source::Going(going);
        self.observed.lost(Outcome::Failed);
        true
    }

    fn goes_on_at(&mut self, answer: Answer) {
        if let Some(failover) = &mut self.failover {
            failover.gone_on(&self.trip, &answer.routed.decision.first().address);
        }
        self.observed.moved_to(answer.routed);
        self.source = Source::Replica(Gathered::new(answer.response.into_body()));
    }

    /// What a client gets in a stream that breaks off: an error, and the end.
    fn broken_off(&mut self) -> Frame<Bytes> {
        self.end(Outcome::Failed);
        if let Some(failover) = &mut self.failover {
            self.trip.gateway.metrics.failover(None);
            if !failover.last_words.is_empty() {
                return Frame::data(std::mem::take(&mut failover.last_words));
            }
        }
        let call = &self.trip.call;
        let error = ApiError::engine_failed("the replica broke off its answer.");
        let (before, json, after) = match call.is_anthropic() {
            true => ("event: error\n", anthropic_error(&error, &call.id), ""),
            false => ("", error.to_json(), "data: [DONE]\n\n"),
        };
        let json = String::from_utf8_lossy(&json);
        Frame::data(format!("\n\n{before}data: {json}\n\n{after}").into())
    }

    /// The end of the replica's bytes; `None` where another one goes on.
    fn ended(&mut self) -> Option<Polled> {
        if self.failover.as_ref().is_some_and(Failover::failed) {
            let goes_on = self.goes_on("its engine failed");
            return (!goes_on).then(|| Some(Ok(self.broken_off())));
        }
        let rest = self.failover.as_mut().map(Failover::rest);
        let mut rest = rest.unwrap_or_default();
        self.see(&rest);
        if let Some(rename) = &mut self.rename {
            let passed = rename.pass(rest);
            rest = [passed, rename.rest()].concat().into();
        }
        self.end(match self.is_failure {
            true => Outcome::Failed,
            false => Outcome::Served,
        });
        Some((!rest.is_empty()).then(|| Ok(Frame::data(rest))))
    }

    /// The next frame, or that the source is another one now.
    fn poll_once(&mut self, cx: &mut Context<'_>) -> Poll<Option<Polled>> {
        let polled = match &mut self.source {
            Source::Going(going) => {
                return Poll::Ready(match std::task::ready!(going.as_mut().poll(cx)) {
                    Some(answer) => {
                        self.goes_on_at(answer);
                        None
                    }
                    None => Some(Some(Ok(self.broken_off()))),
                });
            }
            Source::Replica(body) => Pin::new(body).poll_frame(cx),
        };
        Poll::Ready(match polled {
            Poll::Ready(Some(Ok(frame))) => self.passed(frame).map(|frame| Some(Ok(frame))),
            Poll::Ready(Some(Err(error))) => match self.goes_on(&error.to_string()) {
                true => None,
                false if self.observed.is_stream() => Some(Some(Ok(self.broken_off()))),
                false => {
                    self.end(Outcome::Failed);
                    Some(Some(Err(error)))
                }
            },
            Poll::Ready(None) => self.ended(),
            Poll::Pending if self.hangs(cx) => {
                let goes_on = self.goes_on("its health checks fail");
                (!goes_on).then(|| Some(Ok(self.broken_off())))
            }
            Poll::Pending => return Poll::Pending,
        })
    }
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        while !self.observed.has_ended() {
            if let Some(polled) = std::task::ready!(self.poll_once(cx)) {
                return Poll::Ready(polled);
            }
        }
        Poll::Ready(None)
    }

    /// True at the end of an announced length, too: nothing is asked for after it.
    fn is_end_stream(&self) -> bool {
        self.observed.has_ended() || (self.goes_straight() && self.source.is_end())
    }

    /// The length of an answer that has one: it keeps its header.
    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Replica(body) if self.goes_straight() => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

impl Relayed {
    /// Whether the client gets what the replica sends, byte for byte.
    fn goes_straight(&self) -> bool {
        self.rename.is_none() && self.failover.is_none()
    }
}

impl Source {
    fn is_end(&self) -> bool {
        matches!(self, Self::Replica(body) if body.is_end_stream())
    }
}

impl Drop for Relayed {
    /// The client has left, or has all that was announced.
    fn drop(&mut self) {
        let outcome = match self.source.is_end() {
            true if self.is_failure => Outcome::Failed,
            true => Outcome::Served,
            false => Outcome::ClientGone,
        };
        self.end(outcome);
    }
}
