//! One attempt: the request is sent to one replica.

use axum::body::{Body, Bytes};
use axum::http::{Response as HttpResponse, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use penstock_edge::Failure;
use penstock_fleet::{InFlight, Outcome};
use penstock_http::{ClientError, Level, log};
use penstock_openai::ApiError;
use penstock_routing::Unroutable;

use crate::call::Call;
use crate::gateway::Gateway;
use crate::headers::to_client;
use crate::models::{Destination, RETRY_AFTER};
use crate::pool::{Pool, Routed};

/// A replica's answer that goes to the client.
pub(crate) struct Answer {
    pub(crate) response: HttpResponse<Incoming>,
    pub(crate) routed: Routed,
}

/// A replica that did not do it, and what the client gets when no other does.
pub(crate) struct Lost {
    /// Nothing listens there: trying it took no time and is no retry.
    pub(crate) absent: bool,
    /// It has no room.
    pub(crate) refused: bool,
    /// It answered 500, and this is its reservation until it is known whose fault that is.
    fault: Option<InFlight>,
    error: ApiError,
    /// Its own answer.
    response: Option<HttpResponse<Incoming>>,
}

impl Lost {
    fn new(error: ApiError) -> Self {
        Self {
            absent: false,
            refused: false,
            fault: None,
            error,
            response: None,
        }
    }

    pub(crate) fn unroutable(destination: &Destination, none: Unroutable) -> Self {
        Self::new(destination.unroutable(none))
    }

    /// Whether it may be the request's own fault.
    pub(crate) fn is_fault(&self) -> bool {
        self.fault.is_some()
    }

    /// Another replica has answered with `status`: where that is no error, the fault was this
    /// replica's.
    pub(crate) fn contradicted(mut self, status: StatusCode) {
        if let Some(fault) = self.fault.take() {
            fault.end(match status.is_success() {
                true => Outcome::Failed,
                false => Outcome::Unclear,
            });
        }
    }

    pub(crate) fn into_answer(mut self) -> Result<Response, Failure> {
        if let Some(fault) = self.fault.take() {
            fault.end(Outcome::Unclear);
        }
        let Some(response) = self.response else {
            return Err(self.error.into());
        };
        let (mut parts, body) = response.into_parts();
        to_client(&mut parts);
        Ok(Response::from_parts(parts, Body::new(body)))
    }
}

/// Sends the request with `body` to one replica and waits for the header of its answer, for as
/// long as the replica is healthy.
pub(crate) async fn attempt(
    gateway: &Gateway,
    call: &Call,
    body: &Bytes,
    pool: &Pool,
    routed: Routed,
) -> Result<Answer, Lost> {
    let request = call.head.to(&routed.url, body).map_err(Lost::new)?;
    let address = routed.decision.first().address.clone();
    let sent = tokio::select! {
        sent = gateway.client.send(request) => sent,
        () = pool.unhealthy(routed.decision.first().replica) => {
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
            if outcome == Outcome::Served {
                return Ok(Answer { response, routed });
            }
            note(call, &address, &format!("answered {status}"));
            let error = ApiError::unavailable("All replicas refused.", RETRY_AFTER);
            let lost = Lost {
                refused: outcome == Outcome::Refused,
                response: Some(response),
                ..Lost::new(error)
            };
            (outcome, lost)
        }
        Err(failed) => {
            note(call, &address, &failed.to_string());
            let outcome = match failed {
                ClientError::Connect(_) | ClientError::Refused(_) => Outcome::ConnectFailed,
                ClientError::Broken(_) => Outcome::Failed,
            };
            let lost = Lost {
                absent: matches!(failed, ClientError::Refused(_)),
                ..Lost::new(ApiError::unavailable(
                    "The replica is not there.",
                    RETRY_AFTER,
                ))
            };
            (outcome, lost)
        }
    };
    gateway.metrics.lost();
    match outcome {
        Outcome::Unclear => Err(Lost {
            fault: Some(routed.in_flight),
            ..lost
        }),
        _ => {
            routed.in_flight.end(outcome);
            Err(lost)
        }
    }
}

/// What the status of an answer says of its replica. Where it is not served, another one may do
/// what this one does not.
pub(crate) fn outcome_of(status: StatusCode) -> Outcome {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Outcome::Refused,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Outcome::Failed,
        status if status.is_server_error() => Outcome::Unclear,
        _ => Outcome::Served,
    }
}

fn note(call: &Call, address: &str, what: &str) {
    log(Level::Warning, format!("{}: {address} {what}", call.id));
}
