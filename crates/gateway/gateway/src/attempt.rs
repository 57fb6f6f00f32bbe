//! One attempt to have a request served by a replica.

use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{Response as HttpResponse, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use penstock_api_http::Failure;
use penstock_api_types::ApiError;
use penstock_fleet::{Blame, Outcome};
use penstock_http::{ClientError, SpanKind};
use penstock_routing::Unroutable;
use tracing::{debug, warn};

use crate::call::ProxiedRequest;
use crate::gateway::Gateway;
use crate::headers::{name_replica, to_client};
use crate::models::{Destination, RETRY_AFTER};
use crate::pool::{Pool, Routed};

/// The response of a replica, to be relayed to the client.
pub(crate) struct Answer {
    pub(crate) response: HttpResponse<Incoming>,
    pub(crate) routed: Routed,
}

/// A failed attempt, with the error response that the client gets if no other attempt succeeds.
pub(crate) struct AttemptError {
    /// The connection was refused: the attempt cost no time and does not count as a retry.
    pub(crate) absent: bool,
    /// The replica has no free capacity (429 or 503).
    pub(crate) refused: bool,
    /// The replica has not started to process the request, so even a non-idempotent request may be
    /// retried.
    pub(crate) untouched: bool,
    /// One entry for each replica that answered 500. If another replica serves the request, the
    /// replica is at fault; otherwise the request may be.
    faults: Vec<Blame>,
    error: ApiError,
    /// The replica's own error response.
    response: Option<HttpResponse<Incoming>>,
}

impl AttemptError {
    fn new(error: ApiError) -> Self {
        Self {
            absent: false,
            refused: false,
            untouched: false,
            faults: Vec::new(),
            error,
            response: None,
        }
    }

    pub(crate) fn unroutable(destination: &Destination, none: Unroutable) -> Self {
        Self::new(destination.unroutable(none))
    }

    /// Number of replicas that failed in a way that may be the request's own fault.
    pub(crate) fn faults(&self) -> usize {
        self.faults.len()
    }

    /// Records that another replica answered with `status`. A success proves that the replicas that
    /// failed are at fault.
    pub(crate) fn contradicted(self, status: StatusCode) {
        if status.is_success() {
            self.faults.into_iter().for_each(Blame::failed);
        }
    }

    /// Merges this failure with a later one. A response that reports a fault has precedence over
    /// one that reports a lack of capacity. The result counts as refused if at least one failure is
    /// refused and both are refused or absent.
    pub(crate) fn and(mut self, mut later: Self) -> Self {
        let may_wait = |one: &Self| one.refused || one.absent;
        let (refused, is_later) = (
            (self.refused || later.refused) && may_wait(&self) && may_wait(&later),
            self.faults.is_empty() || !later.faults.is_empty(),
        );
        let (absent, untouched) = (
            self.absent && later.absent,
            self.untouched && later.untouched,
        );
        self.faults.append(&mut later.faults);
        let faults = std::mem::take(&mut self.faults);
        let shown = if is_later { later } else { self };
        Self {
            absent,
            refused,
            untouched,
            faults,
            ..shown
        }
    }

    pub(crate) fn into_answer(self) -> Result<Response, Failure> {
        let Some(response) = self.response else {
            return Err(self.error.into());
        };
        let (mut parts, body) = response.into_parts();
        to_client(&mut parts);
        Ok(Response::from_parts(parts, Body::new(body)))
    }
}

/// Sends the request with `body` to one replica and waits for the response header. Gives up if the
/// replica becomes unhealthy. Sends a non-idempotent request at most once.
pub(crate) async fn attempt(
    gateway: &Gateway,
    call: &ProxiedRequest,
    body: &Bytes,
    pool: &Pool,
    mut routed: Routed,
) -> Result<Answer, AttemptError> {
    let mut request = call.head.to(&routed.url, body).map_err(AttemptError::new)?;
    let address = routed.address().clone();
    gateway.picks.add(&call.id, &pool.name, &routed);
    debug!(parent: &call.span, "attempt: {}", routed.choice);
    routed.span = call.trace.as_ref().map(|trace| {
        let mut span = trace.child("attempt".to_owned(), SpanKind::Client, Instant::now());
        span.set("server.address", &*address);
        span.set("penstock.pool", &*pool.name);
        span.set("penstock.decision", routed.choice.to_string());
        span.context().write(request.headers_mut());
        span
    });
    let sending = async {
        match call.is_repeatable {
            true => gateway.client.send(request).await,
            false => gateway.client.send_once(request).await,
        }
    };
    let sent = tokio::select! {
        sent = sending => sent,
        () = pool.unhealthy(routed.choice.decision.first().replica) => {
            Err(ClientError::Broken("its health checks fail".to_owned()))
        }
    };
    let sent = sent.and_then(|response| match response.status().is_informational() {
        true => Err(ClientError::Broken(format!(
            "{} is no answer",
            response.status()
        ))),
        false => Ok(response),
    });
    let (outcome, lost) = match sent {
        Ok(response) => {
            let status = response.status();
            let outcome = outcome_of(status);
            if let Some(span) = &mut routed.span {
                span.set("http.response.status_code", status.as_u16());
            }
            if outcome == Outcome::Served {
                return Ok(Answer { response, routed });
            }
            let mut response = response;
            name_replica(response.headers_mut(), &gateway.config, &routed);
            note(call, &routed, &format!("answered {status}"));
            let error = ApiError::unavailable("All replicas refused.", RETRY_AFTER);
            let lost = AttemptError {
                refused: outcome == Outcome::Refused,
                untouched: outcome == Outcome::Refused,
                response: Some(response),
                ..AttemptError::new(error)
            };
            (outcome, lost)
        }
        Err(failed) => {
            note(call, &routed, &failed.to_string());
            let outcome = match failed {
                ClientError::Connect(_) | ClientError::Refused(_) => Outcome::ConnectFailed,
                ClientError::Broken(_) => Outcome::Failed,
            };
            let lost = AttemptError {
                absent: matches!(failed, ClientError::Refused(_)),
                untouched: outcome == Outcome::ConnectFailed,
                ..AttemptError::new(ApiError::unavailable(
                    "The replica is not there.",
                    RETRY_AFTER,
                ))
            };
            (outcome, lost)
        }
    };
    gateway.metrics.lost();
    routed.mark(outcome);
    match outcome {
        Outcome::Unclear => Err(AttemptError {
            faults: vec![routed.in_flight.end_unclear()],
            ..lost
        }),
        _ => {
            routed.in_flight.end(outcome);
            Err(lost)
        }
    }
}

/// Derives the outcome for the replica from the status of its response. For any outcome but
/// `Served`, a retry at another replica may succeed.
pub(crate) fn outcome_of(status: StatusCode) -> Outcome {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Outcome::Refused,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Outcome::Failed,
        status if status.is_server_error() => Outcome::Unclear,
        _ => Outcome::Served,
    }
}

fn note(call: &ProxiedRequest, routed: &Routed, what: &str) {
    routed.in_flight.failed_by(what);
    warn!("{}: {} {what}", call.id, routed.address());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields `absent`, `refused` and `untouched` of an [`AttemptError`].
    type Flags = [bool; 3];

    fn lost([absent, refused, untouched]: Flags) -> AttemptError {
        AttemptError {
            absent,
            refused,
            untouched,
            ..AttemptError::new(ApiError::bad_request("x"))
        }
    }

    #[test]
    fn two_that_did_not_do_it_are_as_one() {
        const ABSENT: Flags = [true, false, true];
        const REFUSED: Flags = [false, true, true];
        const BROKEN: Flags = [false; 3];
        for (first, second, wanted) in [
            (ABSENT, ABSENT, ABSENT),
            (ABSENT, REFUSED, REFUSED),
            (REFUSED, REFUSED, REFUSED),
            (REFUSED, BROKEN, BROKEN),
            (ABSENT, BROKEN, BROKEN),
        ] {
            for (one, other) in [(first, second), (second, first)] {
                let both = lost(one).and(lost(other));
                assert_eq!([both.absent, both.refused, both.untouched], wanted);
            }
        }
    }

    #[test]
    fn a_request_may_wait_where_nothing_but_room_is_missing() {
        const KINDS: [Flags; 3] = [[true, false, true], [false, true, true], [false; 3]];
        for first in KINDS {
            for second in KINDS {
                for third in KINDS {
                    let all = [first, second, third];
                    let merged = all.map(lost).into_iter().reduce(AttemptError::and).unwrap();
                    let is_missing = |one: &Flags| one[0] || one[1];
                    let refused = all.iter().any(|one| one[1]) && all.iter().all(is_missing);
                    assert_eq!(merged.refused, refused, "{all:?}");
                    assert_eq!(merged.absent, all.iter().all(|one| one[0]), "{all:?}");
                }
            }
        }
    }
}
