//! What fleet, pool, metrics and the caller's account learn from an answer while it passes, and
//! the one change that is made to it: the model's name.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use bytes::BytesMut;
use memchr::memmem;
use penstock_fleet::Outcome;

use crate::charge::{Charge, Delivery};
use crate::events::{data, data_lines};
use crate::gateway::Gateway;
use crate::headers::{is_plain, is_stream};
use crate::object::{Member, ObjectReader, Segment};
use crate::pool::{Pool, Routed};
use crate::rename::Rename;

/// An answer under way, whichever door it leaves by. It ends once.
#[derive(Debug)]
pub(crate) struct ResponseObserver {
    gateway: Arc<Gateway>,
    pool: Arc<Pool>,
    charge: Charge,
    /// The replica, until it has ended its part.
    routed: Option<Routed>,
    arrived: Instant,
    delivery: Delivery,
    first: bool,
    reader: ObjectReader,
    rename: Option<Rename>,
    ended: bool,
}

impl ResponseObserver {
    /// The answer to a request that `arrived` then, from the replica that was picked.
    pub(crate) fn new(
        gateway: Arc<Gateway>,
        pool: Arc<Pool>,
        charge: Charge,
        routed: Routed,
        arrived: Instant,
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
            ended: false,
        }
    }

    /// The header has come. `rename`: the names that the model has there, and for the client.
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

    /// Whether the answer comes event by event.
    pub(crate) fn is_stream(&self) -> bool {
        self.delivery == Delivery::Events
    }

    /// Whether a name in it is another one for the client.
    pub(crate) fn renames(&self) -> bool {
        self.rename.is_some()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Where the answer comes from; `None` while another replica is looked for.
    pub(crate) fn routed(&self) -> Option<&Routed> {
        self.routed.as_ref()
    }

    /// The replica did not finish it: its reservation ends, the answer may go on elsewhere.
    pub(crate) fn lost(&mut self, outcome: Outcome) {
        if let Some(routed) = self.routed.take() {
            self.gateway.metrics.lost();
            routed.in_flight.end(outcome);
        }
    }

    /// Another replica has taken over.
    pub(crate) fn moved_to(&mut self, routed: Routed) {
        self.routed = Some(routed);
    }

    /// An event goes to the client; adds to `out` what it gets.
    pub(crate) fn event(&mut self, event: &[u8], out: &mut BytesMut) {
        self.count(data_lines(event).count());
        if let Some(data) = data(event) {
            self.charge.event(&data);
        }
        let has = |name: &[u8]| memmem::find(event, name).is_some();
        let is_named = self.rename.is_some() && has(b"\"model\"");
        if !is_named && !has(b"\"usage\"") {
            return out.extend_from_slice(event);
        }
        // the lines are one text: a member may begin on one and end on another
        let lines: Vec<_> = data_lines(event).collect();
        let (Some(first), Some(last)) = (lines.first(), lines.last()) else {
            return out.extend_from_slice(event);
        };
        let (start, end) = (first.start, last.end);
        let mut text = BytesMut::new();
        for line in lines {
            self.read(&event[line], &mut text);
        }
        let (rename, charge) = (self.rename.as_ref(), &mut self.charge);
        self.reader
            .end(|found| note(found, rename, charge, &mut text));
        if !is_named {
            return out.extend_from_slice(event);
        }
        out.extend_from_slice(&event[..start]);
        out.extend_from_slice(&text);
        out.extend_from_slice(&event[end..]);
    }

    /// Bytes of an answer that comes whole, or cannot be read, go to the client.
    pub(crate) fn part(&mut self, bytes: Bytes) -> Bytes {
        if self.delivery == Delivery::Unread {
            return bytes;
        }
        self.charge.bytes(bytes.len());
        let mut out = BytesMut::new();
        self.read(&bytes, &mut out);
        match self.rename {
            Some(_) => out.freeze(),
            None => bytes,
        }
    }

    /// What was held back of an answer that comes whole, at its end.
    pub(crate) fn rest(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        let (rename, charge) = (self.rename.as_ref(), &mut self.charge);
        self.reader
            .end(|found| note(found, rename, charge, &mut out));
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

    /// Data of a stream has come.
    fn count(&mut self, lines: usize) {
        let Some(routed) = self.routed.as_mut().filter(|_| lines > 0) else {
            return;
        };
        if std::mem::take(&mut self.first) {
            self.gateway.metrics.first_token(self.arrived.elapsed());
        }
        routed.in_flight.first_token();
        routed.in_flight.tokens(lines as u32);
    }

    /// The answer is over. Only the first call counts, and says so.
    pub(crate) fn end(&mut self, outcome: Outcome) -> bool {
        if std::mem::replace(&mut self.ended, true) {
            return false;
        }
        match (self.delivery, outcome) {
            (Delivery::Whole(_), Outcome::Failed) => self.charge.refund(),
            _ => self.charge.end(outcome == Outcome::Served),
        }
        self.gateway.metrics.ended(&self.pool.name, outcome);
        if let Some(routed) = self.routed.take() {
            routed.in_flight.end(outcome);
        }
        true
    }
}

/// Notes what was found in an answer; adds to `out` what stands for it, where names change.
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
