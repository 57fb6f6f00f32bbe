//! The response to a request that Envoy proxies. It is observed for the fleet's state, the metrics
//! and the token accounting.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderName, StatusCode, header};
use penstock_api_http::{AccessLine, log_access};
use penstock_api_types::sse_reader::{Event, EventReader};
use penstock_extproc::{AnswerHead, Change};
use penstock_fleet::Outcome;

use crate::attempt::outcome_of;
use crate::charge::Charge;
use crate::envoy::inside::{Inside, Name};
use crate::events::reader;
use crate::filter::{BodyFilter, joined};
use crate::headers::{DECISION, REPLICA, replica_headers};
use crate::models::Destination;
use crate::observe::ResponseObserver;
use crate::pool::{Prompt, Routed};
use crate::rename::Rename;

/// Header that Envoy adds to responses of replicas, but not to its own error responses.
const BY_REPLICA: HeaderName = HeaderName::from_static("x-envoy-upstream-service-time");

#[derive(Debug)]
pub(crate) struct Answer {
    inside: Arc<Inside>,
    destination: Destination,
    observer: ResponseObserver,
    prompt: Prompt,
    /// The model named by the client.
    asked: String,
    /// Splits a streamed response into events.
    events: EventReader,
    status: u16,
    /// Outcome according to the response's header, valid if the response completes.
    outcome: Outcome,
}

impl Answer {
    pub(crate) fn new(
        inside: Arc<Inside>,
        destination: Destination,
        routed: Routed,
        prompt: Prompt,
        (asked, charge): (Option<String>, Charge),
    ) -> Self {
        let observer = ResponseObserver::new(
            inside.gateway.clone(),
            destination.pool.clone(),
            charge,
            routed,
            inside.arrived,
            inside.record.clone(),
        );
        Self {
            inside,
            destination,
            observer,
            prompt,
            asked: asked.unwrap_or_default(),
            events: reader(),
            status: 0,
            outcome: Outcome::Served,
        }
    }

    /// Processes the response header.
    pub(crate) fn began(&mut self, head: &AnswerHead) -> Change {
        if let Some(served) = &head.served {
            self.served_by(served);
        }
        let renamed = self.destination.renamed.as_deref();
        let rename = renamed.map(|renamed| Rename::new(renamed, &self.asked));
        self.observer.began(status_of(head), &head.headers, rename);
        self.status = head.status;
        self.outcome = outcome(head);
        let mut change = Change::default();
        if self.observer.renames() {
            change.remove.push(header::CONTENT_LENGTH);
        }
        if let Some(routed) = self.observer.routed() {
            let headers = replica_headers(&self.inside.gateway.config, routed);
            change.set.extend(headers);
            let is_set = |name: &HeaderName| change.set.iter().any(|(set, _)| set == name);
            let names = [REPLICA, DECISION].into_iter();
            let others: Vec<HeaderName> = names.filter(|name| !is_set(name)).collect();
            change.remove.extend(others);
        }
        change
    }

    /// Handles a response from another endpoint than the first choice: Envoy has retried the
    /// request. Envoy reports no reason for the retry. The reservation moves to the endpoint that
    /// served the request.
    fn served_by(&mut self, served: &str) {
        let routed = self.observer.routed();
        if routed.is_none_or(|one| *one.choice.decision.first().address == *served) {
            return;
        }
        self.observer.lost(Outcome::Refused);
        self.prompt.subset = Some(vec![served.to_owned()]);
        let model = self.destination.renamed.as_deref().unwrap_or(&self.asked);
        if let Ok(routed) = self.destination.pool.route(model, &self.prompt, &[]) {
            self.observer.moved_to(routed);
        }
    }

    /// Processes a chunk of the body; returns the bytes for the client.
    pub(crate) fn pass(&mut self, bytes: Bytes) -> Bytes {
        if !self.observer.is_stream() {
            return self.observer.part(bytes);
        }
        self.events.push(bytes.clone());
        let mut events: Vec<Event> = self.events.by_ref().collect();
        self.observer.events(&mut events);
        if self.events.check().is_err() {
            events.push(Event::new(self.events.rest()));
        }
        match self.observer.renames() {
            true => joined(&events, &bytes),
            false => bytes,
        }
    }

    /// Processes the end of the response; returns the bytes that are still held back.
    pub(crate) fn end(&mut self) -> Bytes {
        let rest = match self.observer.is_stream() {
            true => self.events.rest(),
            false => self.observer.rest(),
        };
        self.finish(self.outcome);
        match self.observer.renames() {
            true => rest,
            false => Bytes::new(),
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        let chosen = self.observer.routed().map(|routed| routed.choice.clone());
        if !self.observer.end(outcome) {
            return;
        }
        let inside = &self.inside;
        let Some(record) = &inside.record else {
            return;
        };
        record.change(|facts| {
            facts.pool = Some(self.destination.pool.name.clone());
            facts.decision = chosen.as_ref().map(ToString::to_string);
            facts.replica = chosen.map(|chosen| chosen.decision.first().address.clone());
        });
        let Name { id, method, .. } = &inside.name;
        let path = inside.name.logged_path();
        let permit = inside.permit.as_ref();
        let line = AccessLine {
            id,
            client: "envoy",
            method,
            path: &path,
            key: permit.map(|permit| permit.caller.name.as_str()),
            status: self.status,
            bytes: None,
            duration: inside.arrived.elapsed(),
            complete: outcome != Outcome::ClientGone,
            trace_id: inside.name.trace_id.as_deref(),
        };
        log_access(&line, &record.facts());
    }
}

impl Drop for Answer {
    /// Ends the response. A drop before the regular end means that the client disconnected.
    fn drop(&mut self) {
        self.finish(Outcome::ClientGone);
    }
}

fn status_of(head: &AnswerHead) -> StatusCode {
    StatusCode::from_u16(head.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn outcome(head: &AnswerHead) -> Outcome {
    let status = status_of(head);
    let by_replica = head.headers.contains_key(BY_REPLICA);
    match status {
        StatusCode::SERVICE_UNAVAILABLE if !by_replica => Outcome::ConnectFailed,
        status => outcome_of(status),
    }
}
