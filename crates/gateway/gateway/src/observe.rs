//! Observes a response that is relayed, for fleet, pool, metrics and token accounting. Changes
//! nothing in the response but the model's name.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use bytes::BytesMut;
use memchr::memmem;
use penstock_api_http::AccessRecord;
use penstock_api_types::sse_reader::Event;
use penstock_fleet::Outcome;

use crate::charge::{Charge, Delivery};
use crate::events::data;
use crate::filter::BodyFilter;
use crate::gateway::Gateway;
use crate::headers::{is_plain, is_stream};
use crate::object::{Member, ObjectReader, Segment};
use crate::pool::{Pool, Routed};
use crate::rename::Rename;
use crate::usage::Usage;

/// A response in flight, relayed by the proxy or by Envoy. It ends once.
#[derive(Debug)]
pub(crate) struct ResponseObserver {
    gateway: Arc<Gateway>,
    pool: Arc<Pool>,
    charge: Charge,
    /// The replica that responds; `None` once its part in the response has ended.
    routed: Option<Routed>,
    arrived: Instant,
    delivery: Delivery,
    first: bool,
    reader: ObjectReader,
    rename: Option<Rename>,
    /// The request's access log entry, if it is logged.
    record: Option<AccessRecord>,
    recorded: Usage,
    ended: bool,
}

impl ResponseObserver {
    /// Creates an observer of the response from the replica of `routed`. `arrived` is the arrival
    /// time of the request.
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        pool: Arc<Pool>,
        charge: Charge,
        routed: Routed,
        arrived: Instant,
        record: Option<AccessRecord>,
    ) -> Self {
        Self {
            gateway,
            pool,
            charge,
            routed: Some(routed),
            arrived,
            delivery: Delivery::Unread,
            first: true,
            reader: ObjectReader::default(),
            rename: None,
            record,
            recorded: Usage::default(),
            ended: false,
        }
    }

    /// Processes the response's header. `rename`: the model's names at the replica and for the
    /// client.
    pub(crate) fn began(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
        rename: Option<Rename>,
    ) {
        self.delivery = match (is_plain(headers), is_stream(headers)) {
            (true, true) => Delivery::Events,
            (true, false) => Delivery::Whole(0),
            (false, _) => Delivery::Unread,
        };
        self.reader = ObjectReader::new(self.delivery == Delivery::Events);
        self.rename = rename.filter(|_| self.delivery != Delivery::Unread);
        match status.is_client_error() || status.is_server_error() {
            true => self.charge.refund(),
            false => self.charge.answered(self.delivery),
        }
    }

    /// Whether the response is an event stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.delivery == Delivery::Events
    }

    /// Whether the model's name is rewritten.
    pub(crate) fn renames(&self) -> bool {
        self.rename.is_some()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// The current replica; `None` during a failover.
    pub(crate) fn routed(&self) -> Option<&Routed> {
        self.routed.as_ref()
    }

    /// Records that the replica failed to finish the response. Ends its reservation; a failover may
    /// follow.
    pub(crate) fn lost(&mut self, outcome: Outcome) {
        if let Some(mut routed) = self.routed.take() {
            self.gateway.metrics.lost();
            routed.mark(outcome);
            routed.in_flight.end(outcome);
        }
    }

    /// Records that another replica has taken over.
    pub(crate) fn moved_to(&mut self, routed: Routed) {
        self.routed = Some(routed);
    }

    /// Processes an event, and replaces the model's name in it.
    fn event(&mut self, event: &mut Event) {
        self.count(event.data_lines().count());
        if let Some(data) = data(event) {
            self.charge.event(&data);
        }
        let has = |name: &[u8]| memmem::find(event.bytes(), name).is_some();
        let is_named = self.rename.is_some() && has(b"\"model\"");
        if !is_named && !has(b"\"usage\"") {
            return;
        }
        let Some(place) = data_place(event) else {
            return;
        };
        // the data lines form one JSON text, in which a member may begin on one line and end on
        // another
        let mut text = BytesMut::new();
        for line in event.data_lines() {
            self.read(&event.bytes()[line], &mut text);
        }
        let (rename, charge) = (self.rename.as_ref(), &mut self.charge);
        self.reader
            .end(|found| note(found, rename, charge, &mut text));
        self.record_usage();
        if is_named {
            let (before, after) = (&event.bytes()[..place.start], &event.bytes()[place.end..]);
            *event = Event::new([before, &text, after].concat());
        }
    }

    /// The bytes that are still held back at the end of a single-body response.
    pub(crate) fn rest(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        let (rename, charge) = (self.rename.as_ref(), &mut self.charge);
        self.reader
            .end(|found| note(found, rename, charge, &mut out));
        self.record_usage();
        match self.rename {
            Some(_) => out.freeze(),
            None => Bytes::new(),
        }
    }

    fn read(&mut self, text: &[u8], out: &mut BytesMut) {
        let (rename, charge) = (self.rename.as_ref(), &mut self.charge);
        self.reader
            .read(text, |found| note(found, rename, charge, out));
    }

    /// Copies the response's token counts to the access log's record, when they have changed.
    fn record_usage(&mut self) {
        let (Some(record), usage) = (&self.record, self.charge.reported()) else {
            return;
        };
        if usage == self.recorded {
            return;
        }
        self.recorded = usage;
        record.change(|facts| {
            facts.prompt_tokens = usage.prompt_tokens.map(u64::from);
            facts.completion_tokens = usage.completion_tokens.map(u64::from);
            facts.cached_tokens = usage.cached_tokens.map(u64::from);
        });
    }

    /// Counts the data lines of a stream as output tokens.
    fn count(&mut self, lines: usize) {
        let Some(routed) = self.routed.as_mut().filter(|_| lines > 0) else {
            return;
        };
        if std::mem::take(&mut self.first) {
            let after = self.arrived.elapsed();
            self.gateway.metrics.first_token(after);
            if let Some(record) = &self.record {
                record.change(|facts| facts.first_token = Some(after));
            }
        }
        routed.in_flight.first_token();
        routed.in_flight.tokens(lines as u32);
    }

    /// Ends the response. Returns true for the first call only.
    pub(crate) fn end(&mut self, outcome: Outcome) -> bool {
        if std::mem::replace(&mut self.ended, true) {
            return false;
        }
        match (self.delivery, outcome) {
            (Delivery::Whole(_), Outcome::Failed) => self.charge.refund(),
            _ => self.charge.end(outcome == Outcome::Served),
        }
        self.gateway.metrics.ended(&self.pool.name, outcome);
        if let Some(mut routed) = self.routed.take() {
            routed.mark(outcome);
            routed.in_flight.end(outcome);
        }
        true
    }
}

impl BodyFilter for ResponseObserver {
    fn events(&mut self, events: &mut Vec<Event>) {
        events.iter_mut().for_each(|event| self.event(event));
    }

    /// Processes bytes of a response that is not streamed or is unreadable (compressed). Returns
    /// the bytes for the client.
    fn part(&mut self, bytes: Bytes) -> Bytes {
        if self.delivery == Delivery::Unread {
            return bytes;
        }
        self.charge.bytes(bytes.len());
        let mut out = BytesMut::new();
        self.read(&bytes, &mut out);
        self.record_usage();
        match self.rename {
            Some(_) => out.freeze(),
            None => bytes,
        }
    }
}

/// Byte range from the start of an event's first data line to the end of its last.
fn data_place(event: &Event) -> Option<Range<usize>> {
    let mut lines = event.data_lines();
    let first = lines.next()?;
    Some(first.start..lines.next_back().map_or(first.end, |last| last.end))
}

/// Records a segment of a response. If the model is renamed, appends the segment to `out`, with the
/// new name.
fn note(found: Segment<'_>, rename: Option<&Rename>, charge: &mut Charge, out: &mut BytesMut) {
    let text = match (found, rename) {
        (Segment::Value(Member::Usage, json), _) => {
            charge.usage(json);
            json
        }
        (Segment::Value(Member::Model, name), Some(rename)) => rename.of(name),
        (Segment::Text(text) | Segment::Value(_, text), _) => text,
    };
    if rename.is_some() {
        out.extend_from_slice(text);
    }
}
