//! The path of a request.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, Request, Response as HttpResponse, StatusCode};
use axum::response::Response;
use hyper::body::Incoming;
use penstock_edge::{AccessNote, Failure};
use penstock_fleet::Outcome;
use penstock_http::{ClientError, Level, log};
use penstock_openai::ApiError;
use penstock_routing::{ReplicaId, Unroutable};

use crate::call::Call;
use crate::failover::Trip;
use crate::gateway::{Gateway, Place};
use crate::headers::end_to_end;
use crate::models::{Destination, RETRY_AFTER};
use crate::pool::{Pool, Routed};
use crate::relay::Relayed;

pub(crate) const DECISION: &str = "x-penstock-decision";

/// Any request with a body: admit, read, pick a replica, send, and go on with the next replica
/// until one answers.
pub(crate) async fn forward(
    State(gateway): State<Arc<Gateway>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrived = Instant::now();
    let place = gateway.admit()?;
    let mut call = Call::read(&gateway, request).await?;
    let destination = gateway.destination(call.asked.as_deref(), None)?;
    if let Some(renamed) = &destination.renamed {
        call.rename(renamed);
    }
    let model = destination.renamed.as_deref().or(call.asked.as_deref());
    let model = model.unwrap_or_default();
    let (caller, bytes) = (call.caller.as_deref(), call.body_bytes());
    let class = gateway.class(call.headers(), caller, &destination);
    let flow = &destination.pool.flow;
    let mut turn = Some(flow.pass(&class, bytes, call.prompt.bytes).await?);
    let mut tried: Vec<ReplicaId> = Vec::new();
    let mut last = None;
    while tried.len() <= gateway.config.retries {
        let routed = match destination.pool.route(model, &call.prompt, &tried) {
            Ok(routed) => routed,
            Err(Unroutable::Tried) => break,
            Err(none) => {
                last = Some(Lost::unroutable(&destination, none));
                break;
            }
        };
        drop(turn.take());
        gateway.metrics.decided(arrived.elapsed(), tried.len());
        tried.push(routed.decision.first().replica);
        match attempt(&gateway, &call, &call.body, &destination.pool, routed).await {
            Ok(answer) => {
                return Ok(relayed(
                    &gateway,
                    call,
                    &destination,
                    answer,
                    place,
                    arrived,
                ));
            }
            Err(lost) => last = Some(lost),
        }
    }
    last.unwrap_or_else(|| Lost::unroutable(&destination, Unroutable::Tried))
        .into_answer()
}

/// A replica's answer that goes to the client.
pub(crate) struct Answer {
    pub(crate) response: HttpResponse<Incoming>,
    pub(crate) routed: Routed,
}

/// A replica that did not do it, and what the client gets when no other does.
pub(crate) struct Lost {
    error: ApiError,
    /// Its own refusal.
    response: Option<HttpResponse<Incoming>>,
}

impl Lost {
    fn unroutable(destination: &Destination, none: Unroutable) -> Self {
        Self {
            error: destination.unroutable(none),
            response: None,
        }
    }

    fn into_answer(self) -> Result<Response, Failure> {
        let Some(response) = self.response else {
            return Err(self.error.into());
        };
        let (mut parts, body) = response.into_parts();
        end_to_end(&mut parts.headers);
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
    let request = match call.to(&routed.url, body) {
        Ok(request) => request,
        Err(error) => {
            return Err(Lost {
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
    let (outcome, lost) = match sent {
        Ok(response) if elsewhere(response.status()) => {
            let outcome = match response.status() {
                StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => Outcome::Failed,
                _ => Outcome::Refused,
            };
            let error = ApiError::unavailable("All replicas refused.", RETRY_AFTER);
            let status = response.status();
            note(call, &address, &format!("answered {status}"));
            let response = Some(response);
            (outcome, Lost { error, response })
        }
        Ok(response) => return Ok(Answer { response, routed }),
        Err(failed) => {
            note(call, &address, &failed.to_string());
            let outcome = match failed {
                ClientError::Connect(_) | ClientError::Refused(_) => Outcome::ConnectFailed,
                ClientError::Broken(_) => Outcome::Failed,
            };
            let error = ApiError::unavailable("The replica is not there.", RETRY_AFTER);
            let response = None;
            (outcome, Lost { error, response })
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

/// The client's answer: the replica's, as it comes.
fn relayed(
    gateway: &Arc<Gateway>,
    call: Call,
    destination: &Destination,
    answer: Answer,
    place: Place,
    arrived: Instant,
) -> Response {
    let Answer { response, routed } = answer;
    let (mut parts, body) = response.into_parts();
    end_to_end(&mut parts.headers);
    let decision = routed.decision.to_string();
    if gateway.config.explain
        && let Ok(value) = HeaderValue::from_str(&decision)
    {
        parts.headers.insert(DECISION, value);
    }
    if gateway.config.access_log {
        let pool = &destination.pool.name;
        parts
            .extensions
            .insert(AccessNote(format!("{pool}: {decision}")));
    }
    let renamed = destination.renamed.as_deref();
    let model = renamed.or(call.asked.as_deref()).unwrap_or_default();
    let trip = Trip {
        model: model.to_owned(),
        gateway: gateway.clone(),
        pool: destination.pool.clone(),
        call,
    };
    let body = Relayed::new(trip, renamed, routed, body, &mut parts, place, arrived);
    Response::from_parts(parts, Body::new(body))
}
