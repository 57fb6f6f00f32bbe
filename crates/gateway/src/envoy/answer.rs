//! The answer to a request that Envoy carries: what the fleet learns from it.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use penstock_extproc::{AnswerHead, Change};
use penstock_fleet::Outcome;
use penstock_http::{Level, log};

use crate::envoy::inside::{Inside, Name};
use crate::forward::DECISION;
use crate::models::Destination;
use crate::pool::{Prompt, Routed};
use crate::rename::Rename;
use crate::usage::{UsageReader, events};

/// Envoy adds it to what a replica answers, and not to what it answers itself.
const BY_REPLICA: HeaderName = HeaderName::from_static("x-envoy-upstream-service-time");

#[derive(Debug)]
pub(crate) struct Answer {
    inside: Arc<Inside>,
    destination: Destination,
    /// Until the answer has ended.
    routed: Option<Routed>,
    prompt: Prompt,
    /// The model that the client asked for.
    asked: String,
    usage: UsageReader,
    rename: Option<Rename>,
    is_stream: bool,
    first: bool,
    status: u16,
    /// What a complete answer is, by its header.
    outcome: Outcome,
}

impl Answer {
    pub(crate) fn new(
        inside: Arc<Inside>,
        destination: Destination,
        routed: Routed,
        prompt: Prompt,
        asked: Option<String>,
    ) -> Self {
        Self {
            inside,
            destination,
            routed: Some(routed),
            prompt,
            asked: asked.unwrap_or_default(),
            usage: UsageReader::default(),
            rename: None,
            is_stream: false,
            first: true,
            status: 0,
            outcome: Outcome::Served,
        }
    }

    /// The header has come.
    pub(crate) fn began(&mut self, head: &AnswerHead) -> Change {
        if let Some(served) = &head.served {
            self.served_by(served);
        }
        let kind = head.headers.get(header::CONTENT_TYPE);
        let kind = kind.map(HeaderValue::as_bytes).unwrap_or_default();
        self.is_stream = kind.starts_with(b"text/event-stream");
        self.status = head.status;
        self.outcome = outcome(head);
        let mut change = Change::default();
        if let Some(renamed) = self.destination.renamed.as_deref() {
            self.rename = Some(Rename::new(renamed, &self.asked));
            change.remove.push(header::CONTENT_LENGTH);
        }
        if self.inside.gateway.config.explain
            && let Some(decision) = self.decision()
            && let Ok(value) = HeaderValue::from_str(&decision)
        {
            change.set.push((HeaderName::from_static(DECISION), value));
        }
        change
    }

    /// Another endpoint than the first served: Envoy has tried the first one in vain, and does not
    /// say why. The reservation goes along.
    fn served_by(&mut self, served: &str) {
        let is_first = |one: &Routed| *one.decision.first().address == *served;
        let Some(first) = self.routed.take_if(|one| !is_first(one)) else {
            return;
        };
        first.in_flight.end(Outcome::Refused);
        self.inside.gateway.metrics.lost();
        self.prompt.subset = Some(vec![served.to_owned()]);
        let model = self.destination.renamed.as_deref().unwrap_or(&self.asked);
        let routed = self.destination.pool.route(model, &self.prompt, &[]);
        self.routed = routed.ok();
    }

    /// Bytes have come; those that the client gets.
    pub(crate) fn pass(&mut self, bytes: Bytes) -> Bytes {
        self.usage.see(&bytes);
        if self.is_stream
            && !bytes.is_empty()
            && let Some(routed) = &mut self.routed
        {
            if std::mem::take(&mut self.first) {
                let inside = &self.inside;
                inside.gateway.metrics.first_token(inside.arrived.elapsed());
            }
            routed.in_flight.first_token();
            routed.in_flight.tokens(events(&bytes));
        }
        match &mut self.rename {
            Some(rename) => rename.pass(bytes),
            None => bytes,
        }
    }

    /// The answer is complete; what was held back of it.
    pub(crate) fn end(&mut self) -> Bytes {
        if let Some(usage) = self.usage.usage() {
            let pool = &self.destination.pool;
            pool.learn(self.prompt.bytes, usage.prompt_tokens);
            if let Some(permit) = &self.inside.permit {
                let tokens = usage.prompt_tokens.saturating_add(usage.completion_tokens);
                permit.caller.usage.spend(tokens);
            }
        }
        self.finish(self.outcome);
        self.rename.as_mut().map(Rename::rest).unwrap_or_default()
    }

    fn finish(&mut self, outcome: Outcome) {
        let decision = self.decision();
        let Some(routed) = self.routed.take() else {
            return;
        };
        let (inside, pool) = (&self.inside, &self.destination.pool.name);
        inside.gateway.metrics.ended(pool, outcome);
        routed.in_flight.end(outcome);
        if inside.gateway.config.access_log {
            let Name { id, method, .. } = &inside.name;
            let path = inside.name.logged_path();
            let (status, seconds) = (self.status, inside.arrived.elapsed().as_secs_f64());
            let left = match outcome {
                Outcome::ClientGone => ", client left",
                _ => "",
            };
            let decision = decision.unwrap_or_default();
            log(
                Level::Info,
                format!(
                    "{id}: envoy {method} {path} {status}, {seconds:.3} s{left}, \
                     {pool}: {decision}"
                ),
            );
        }
    }

    fn decision(&self) -> Option<String> {
        let routed = self.routed.as_ref();
        routed.map(|routed| routed.decision.to_string())
    }
}

impl Drop for Answer {
    /// The client has left.
    fn drop(&mut self) {
        self.finish(Outcome::ClientGone);
    }
}

fn outcome(head: &AnswerHead) -> Outcome {
    let status = StatusCode::from_u16(head.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let by_replica = head.headers.contains_key(BY_REPLICA);
    match status {
        StatusCode::SERVICE_UNAVAILABLE if !by_replica => Outcome::ConnectFailed,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Outcome::Refused,
        status if status.is_server_error() => Outcome::Failed,
        _ => Outcome::Served,
    }
}
