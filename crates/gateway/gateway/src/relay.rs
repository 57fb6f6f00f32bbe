//! Relays the body of a response from the replica to the client.
//!
//! Backpressure is end to end: if the client does not read, the replica's stream stops. Chunks that
//! are available at the same time are joined. A stream is forwarded in whole events, each of which
//! passes through a list of filters ([`ResponseBody::filters`]). If a stream with resume markers
//! breaks off, another replica resumes it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Bytes;
use axum::http::header;
use axum::http::response::Parts;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use penstock_api_types::sse_reader::{Event, EventReader};
use penstock_api_types::{ApiError, RESUMABLE, anthropic_error};
use penstock_fleet::Outcome;
use penstock_http::Gathered;
use tracing::warn;

use crate::attempt::Answer;
use crate::charge::Charge;
use crate::ending::EndDetector;
use crate::events::reader;
use crate::failover::{Failover, RequestContext, ResumeFuture};
use crate::filter::{BodyFilter, joined};
use crate::gateway::RequestPermit;
use crate::mirror::{self, Tap};
use crate::observe::ResponseObserver;
use crate::pool::Routed;
use crate::rename::Rename;
use crate::silence::StallTimer;
use crate::stop::ShutdownWait;

/// The body of one response.
pub(crate) struct ResponseBody {
    source: Source,
    trip: Arc<RequestContext>,
    observer: ResponseObserver,
    /// Splits a stream into events. Used until the stream breaks off without a failover.
    reader: EventReader,
    /// The events of one chunk while the filters process them; empty between chunks.
    events: Vec<Event>,
    ending: EndDetector,
    failover: Option<Failover>,
    stall: StallTimer,
    stop: ShutdownWait,
    /// Copies the response to the comparison with a mirrored request.
    mirror: Option<Tap>,
    _permit: RequestPermit,
}

/// Source of the next bytes.
enum Source {
    Replica(Gathered<Incoming>),
    /// The search for another replica, which yields no bytes.
    Resuming(ResumeFuture),
}

type Polled = Option<Result<Frame<Bytes>, axum::Error>>;

impl ResponseBody {
    /// `renamed` is the model's name at the replica, if it differs from the client's.
    pub(crate) fn new(
        mut trip: RequestContext,
        renamed: Option<&str>,
        (charge, routed): (Charge, Routed),
        body: Incoming,
        parts: &mut Parts,
        permit: RequestPermit,
        arrived: Instant,
    ) -> Self {
        let call = &trip.call;
        let ending = EndDetector::new(parts.status, call.path(), call.price.choices);
        let (gateway, pool) = (trip.gateway.clone(), trip.pool.clone());
        let record = call.record.clone();
        let mut observer = ResponseObserver::new(gateway, pool, charge, routed, arrived, record);
        let asked = call.asked.as_deref().unwrap_or_default();
        let rename = renamed.map(|renamed| Rename::new(renamed, asked));
        observer.began(parts.status, &parts.headers, rename);
        let at = (&*trip.pool, trip.model.as_str());
        let mirror = mirror::begin(&trip.gateway, call, at, parts, arrived);
        let failover = Failover::of(&trip, &parts.headers);
        let may_go_on = failover.as_ref().is_some_and(Failover::may_go_on);
        trip.call.sent(may_go_on);
        parts.headers.remove(RESUMABLE);
        if observer.renames() || observer.is_stream() {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
        Self {
            source: Source::Replica(Gathered::new(body)),
            stall: StallTimer::new(may_go_on),
            stop: trip.gateway.stopper.wait(),
            trip: Arc::new(trip),
            observer,
            reader: reader(),
            events: Vec::new(),
            ending,
            failover,
            mirror,
            _permit: permit,
        }
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(mut mirror) = self.mirror.take()
            && outcome == Outcome::Served
        {
            mirror.end();
        }
        self.observer.end(outcome);
    }

    /// The filters that process a body, in this order.
    fn filters(&mut self) -> impl Iterator<Item = &mut dyn BodyFilter> {
        let filters: [Option<&mut dyn BodyFilter>; 4] = [
            // detects the end of the response; must get the events as the replica sent them
            Some(&mut self.ending),
            // removes resume markers; holds back or rewrites events
            self.failover.as_mut().map(|one| one as &mut dyn BodyFilter),
            // copies the client's response, but with the model's name at the replica
            self.mirror.as_mut().map(|one| one as &mut dyn BodyFilter),
            // measures the output rate and charges for it; replaces the model's name by the
            // client's
            Some(&mut self.observer),
        ];
        filters.into_iter().flatten()
    }

    /// Passes bytes from the replica through the filters; returns the bytes for the client.
    fn passed(&mut self, bytes: Bytes) -> Bytes {
        if !self.observer.is_stream() {
            return self.filters().fold(bytes, |part, filter| filter.part(part));
        }
        let mut events = std::mem::take(&mut self.events);
        self.reader.push(bytes.clone());
        events.extend(&mut self.reader);
        self.filters().for_each(|filter| filter.events(&mut events));
        let out = joined(&events, &bytes);
        events.clear();
        self.events = events;
        out
    }

    /// Whether the response has stalled while its replica's health checks fail.
    fn hangs(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(routed) = self.observer.routed() else {
            return false;
        };
        let (pool, replica) = (&self.trip.pool, routed.choice.decision.first().replica);
        self.stall.poll(cx, || pool.is_unhealthy(replica))
    }

    /// Starts the search for another replica; returns false if failover is impossible.
    fn goes_on(&mut self, why: &str) -> bool {
        let Some(routed) = self.observer.routed() else {
            return false;
        };
        let replica = routed.choice.decision.first().replica;
        let (id, address) = (&self.trip.call.id, routed.address());
        routed
            .in_flight
            .failed_by(&format!("broke off its answer: {why}"));
        warn!("{id}: {address} broke off its answer: {why}");
        let failover = self.failover.as_mut();
        let Some(resuming) = failover.and_then(|one| one.go_on(&self.trip, replica)) else {
            return false;
        };
        self.source = Source::Resuming(resuming);
        self.reader = reader();
        self.ending.begin_again();
        self.observer.lost(Outcome::Failed);
        true
    }

    fn goes_on_at(&mut self, answer: Answer) {
        if let Some(failover) = &mut self.failover {
            failover.gone_on(&self.trip, answer.routed.address());
        }
        if let Some(record) = &self.trip.call.record {
            let address = answer.routed.address().clone();
            record.change(|facts| facts.continued_on.push(address));
        }
        self.observer.moved_to(answer.routed);
        self.source = Source::Replica(Gathered::new(answer.response.into_body()));
    }

    /// Handles a replica that failed to finish its response. Returns `None` if a failover has
    /// started.
    fn breaks_off(&mut self, why: &str) -> Option<Polled> {
        match self.goes_on(why) {
            true => None,
            false => Some(self.broken_off(&broken())),
        }
    }

    /// Ends a broken response; a stream ends with an error event.
    fn broken_off(&mut self, error: &ApiError) -> Polled {
        self.end(Outcome::Failed);
        if !self.observer.is_stream() {
            return Some(Err(axum::Error::new(error.message.clone())));
        }
        if let Some(failover) = &mut self.failover {
            self.trip.gateway.metrics.failover(None);
            if !failover.last_words.is_empty() {
                return Some(Ok(Frame::data(std::mem::take(&mut failover.last_words))));
            }
        }
        let call = &self.trip.call;
        let (before, json, after) = match call.is_anthropic() {
            true => ("event: error\n", anthropic_error(error, &call.id), ""),
            false => ("", error.to_json(), "data: [DONE]\n\n"),
        };
        let json = String::from_utf8_lossy(&json);
        Some(Ok(Frame::data(
            format!("{before}data: {json}\n\n{after}").into(),
        )))
    }

    /// Handles the end of the replica's bytes. Returns `None` if a failover has started.
    fn ended(&mut self) -> Option<Polled> {
        let out = match self.observer.is_stream() {
            true => match self.last_events() {
                Ok(out) => out,
                Err(why) => return self.breaks_off(why),
            },
            false => self.observer.rest(),
        };
        self.end(Outcome::Served);
        Some((!out.is_empty()).then(|| Ok(Frame::data(out))))
    }

    /// The last bytes of a stream, if it is complete.
    ///
    /// # Errors
    /// The reason why the stream is incomplete.
    fn last_events(&mut self) -> Result<Bytes, &'static str> {
        let rest = Event::new(self.reader.rest());
        let rest = Some(rest).filter(|rest| self.ending.is_event(rest));
        if let Some(rest) = &rest {
            self.ending.see(rest);
        }
        if self.failover.as_ref().is_some_and(Failover::failed) {
            return Err("its engine failed");
        }
        if !self.ending.has_come() {
            return Err("it ended before its answer");
        }
        let whole = rest.map(|rest| [rest.bytes().trim_ascii_end(), b"\n\n"].concat());
        let mut events: Vec<Event> = whole.map(Event::new).into_iter().collect();
        self.filters().for_each(|filter| {
            filter.events(&mut events);
            filter.release(&mut events);
        });
        Ok(joined(&events, &Bytes::new()))
    }

    /// Handles a broken connection to the replica.
    fn broke(&mut self, why: &str) -> Option<Polled> {
        let may_go_on = self.failover.as_ref().is_some_and(Failover::may_go_on);
        match !may_go_on && self.observer.is_stream() && self.ending.is_final() {
            true => self.ended(),
            false => self.breaks_off(why),
        }
    }

    /// Polls for the next frame. The inner `None` means that the source of the bytes has changed.
    fn poll_once(&mut self, cx: &mut Context<'_>) -> Poll<Option<Polled>> {
        if let Err(error) = self.reader.check() {
            return Poll::Ready(self.breaks_off(&error.to_string()));
        }
        let polled = match &mut self.source {
            Source::Resuming(resuming) => resuming.as_mut().poll(cx).map(|answer| match answer {
                Some(answer) => {
                    self.goes_on_at(answer);
                    None
                }
                None => Some(self.broken_off(&broken())),
            }),
            Source::Replica(body) => match Pin::new(body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => Poll::Ready(self.frame(frame)),
                Poll::Ready(Some(Err(error))) => Poll::Ready(self.broke(&error.to_string())),
                Poll::Ready(None) => Poll::Ready(self.ended()),
                Poll::Pending if self.hangs(cx) => {
                    Poll::Ready(self.breaks_off("its health checks fail"))
                }
                Poll::Pending => Poll::Pending,
            },
        };
        if polled.is_pending() && self.observer.is_stream() && self.stop.poll(cx) {
            let error = ApiError::unavailable("The gateway is shutting down.", 5);
            return Poll::Ready(Some(self.broken_off(&error)));
        }
        polled
    }

    fn frame(&mut self, frame: Frame<Bytes>) -> Option<Polled> {
        self.stall.restart();
        let frame = match frame.into_data() {
            Ok(bytes) => Frame::data(self.passed(bytes)),
            Err(trailers) => trailers,
        };
        let is_empty = frame.data_ref().is_some_and(Bytes::is_empty);
        (!is_empty).then_some(Some(Ok(frame)))
    }
}

fn broken() -> ApiError {
    ApiError::engine_failed("the replica broke off its answer.")
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        while !self.observer.has_ended() {
            if let Some(polled) = std::task::ready!(self.poll_once(cx)) {
                return Poll::Ready(polled);
            }
        }
        Poll::Ready(None)
    }

    /// Also true at the end of a body of known length, because such a body is not polled again.
    fn is_end_stream(&self) -> bool {
        self.observer.has_ended() || (self.goes_straight() && self.source.is_end())
    }

    /// The exact length, for a response that keeps its `Content-Length`.
    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Replica(body) if self.goes_straight() => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

impl ResponseBody {
    /// Whether the replica's bytes are forwarded unchanged, neither split into events nor renamed.
    fn goes_straight(&self) -> bool {
        !self.observer.renames() && !self.observer.is_stream()
    }
}

impl Source {
    fn is_end(&self) -> bool {
        matches!(self, Self::Replica(body) if body.is_end_stream())
    }
}

impl Drop for ResponseBody {
    /// Ends the response: the client has disconnected, or has received the whole body.
    fn drop(&mut self) {
        let is_whole = !self.observer.is_stream() || self.ending.has_come();
        let outcome = match self.source.is_end() && is_whole {
            true => Outcome::Served,
            false => Outcome::ClientGone,
        };
        self.end(outcome);
    }
}
