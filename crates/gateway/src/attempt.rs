//! One attempt: the request is sent to one replica.

use axum::body::{Body, Bytes};
use axum::http::{Response as HttpResponse, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use penstock_edge::Failure;
use penstock_fleet::Outcome;
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
    error: ApiError,
    /// Its own refusal.
    response: Option<HttpResponse<Incoming>>,
}

impl Lost {
    pub(crate) fn unroutable(destination: &Destination, none: Unroutable) -> Self {
        Self {
            absent: false,
            error: destination.unroutable(none),
            response: None,
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

/// Sends the request with `body` to one replica and waits for the header of its answer, for as
/// long as the replica is healthy.
pub(crate) async fn attempt(
    gateway: &Gateway,
    call: &Call,
    body: &Bytes,
    pool: &Pool,
    routed: Routed,
) -> Result<Answer, Lost> {
    let request = match call.head.to(&routed.url, body) {
        Ok(request) => request,
        Err(error) => {
            return Err(Lost {
                absent: false,
                error,
                response: None,
            });
        }
    };
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
        Ok(response) if elsewhere(response.status()) => {
            let outcome = match response.status() {
                StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Outcome::Failed,
                _ => Outcome::Refused,
            };
            let error = ApiError::unavailable("All replicas refused.", RETRY_AFTER);
            let status = response.status();
            note(call, &address, &format!("answered {status}"));
            let lost = Lost {
                absent: false,
                error,
                response: Some(response),
            };
            (outcome, lost)
        }
        Ok(response) => return Ok(Answer { response, routed }),
        Err(failed) => {
            note(call, &address, &failed.to_string());
            let outcome = match failed {
                ClientError::Connect(_) | ClientError::Refused(_) => Outcome::ConnectFailed,
                ClientError::Broken(_) => Outcome::Failed,
            };
            let lost = Lost {
                absent: matches!(failed, ClientError::Refused(_)),
                error: ApiError::unavailable("The replica is not there.", RETRY_AFTER),
                response: None,
            };
            (outcome, lost)
        }
    };
    gateway.metrics.lost();
    routed.in_flight.end(outcome);
    Err(lost)
}

/// Whether another replica may do what this one does not.
fn elsewhere(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

fn note(call: &Call, address: &str, what: &str) {
    log(Level::Warning, format!("{}: {address} {what}", call.id));
}
