//! The path of a request through the proxy.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_api_http::Failure;
use penstock_api_types::ApiError;
use penstock_fleet::Outcome;

use crate::attempt::{Answer, AttemptError};
use crate::call::ProxiedRequest;
use crate::charge::Charge;
use crate::failover::RequestContext;
use crate::flow::Turn;
use crate::gateway::{Gateway, RequestPermit};
use crate::headers::{name_replica, to_client};
use crate::hedge::attempt_hedged;
use crate::models::Destination;
use crate::pool::Pool;
use crate::relay::ResponseBody;

/// Handles a proxied request: admits, reads and routes it, and tries replicas until one responds.
pub(crate) async fn forward(
    State(gateway): State<Arc<Gateway>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    tokio::select! {
        answer = answered(&gateway, request) => answer,
        () = gateway.stopper.wait().come() => {
            Err(ApiError::unavailable("The gateway is shutting down.", 5).into())
        }
    }
}

async fn answered(gateway: &Arc<Gateway>, request: Request<Body>) -> Result<Response, Failure> {
    let arrived = Instant::now();
    let permit = gateway.admit()?;
    let mut call = ProxiedRequest::read(gateway, request).await?;
    let destination = gateway.destination(call.asked.as_deref(), None)?;
    if let Some(renamed) = &destination.renamed {
        call.rename(renamed);
    }
    call.tokenize(&destination.pool).await;
    let mut departure = Departure {
        gateway,
        pool: Some(destination.pool.clone()),
    };
    let answer = in_turn(gateway, call, destination, (permit, arrived)).await;
    departure.pool = None;
    answer
}

/// Counts a request whose client disconnects before there is a response.
struct Departure<'a> {
    gateway: &'a Gateway,
    /// `None` once there is a response.
    pool: Option<Arc<Pool>>,
}

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            self.gateway.metrics.ended(&pool.name, Outcome::ClientGone);
        }
    }
}

/// Waits for the request's turn, and tries replicas.
async fn in_turn(
    gateway: &Arc<Gateway>,
    mut call: ProxiedRequest,
    destination: Destination,
    (permit, arrived): (RequestPermit, Instant),
) -> Result<Response, Failure> {
    let model = destination.renamed.as_deref().or(call.asked.as_deref());
    let model = model.unwrap_or_default();
    let class = gateway.class(call.headers(), call.caller.as_deref(), &destination);
    call.prompt.priority = class.priority;
    let flow = &destination.pool.flow;
    let mut visit = flow.visit(class, call.body_bytes(), call.prompt.bytes);
    let mut turn = visit.pass().await?;
    loop {
        let (pool, caller) = (destination.pool.clone(), call.caller.clone());
        let mut charge = Charge::begin(pool, caller, call.price, &call.prompt);
        let lost = match round(gateway, &call, (&destination, model), turn, arrived).await {
            Ok(answer) => {
                let (answer, inside) = ((charge, answer), (permit, arrived));
                return Ok(relayed(gateway, call, &destination, answer, inside));
            }
            Err(lost) => lost,
        };
        charge.refund();
        match lost.refused && visit.may_wait() {
            true => turn = visit.pass_again().await?,
            false => return lost.into_answer(),
        }
    }
}

/// Tries replicas one by one until one responds or the retries are used up. A 500 is retried at one
/// more replica; if that replica succeeds, the first one was at fault. A non-idempotent request is
/// not retried once a replica may have executed it.
async fn round(
    gateway: &Gateway,
    call: &ProxiedRequest,
    (destination, model): (&Destination, &str),
    turn: Turn,
    arrived: Instant,
) -> Result<Answer, AttemptError> {
    let (pool, mut turn) = (&*destination.pool, Some(turn));
    let (mut tried, mut attempts) = (Vec::new(), 0);
    let mut lost: Option<AttemptError> = None;
    loop {
        let routed = match pool.route(model, &call.prompt, &tried) {
            Ok(routed) => routed,
            Err(none) => {
                return Err(lost.unwrap_or_else(|| AttemptError::unroutable(destination, none)));
            }
        };
        drop(turn.take());
        gateway.metrics.decided(arrived.elapsed(), tried.len());
        tried.push(routed.choice.decision.first().replica);
        match attempt_hedged(gateway, call, (pool, model), routed, &mut tried).await {
            Ok(answer) => {
                if let Some(lost) = lost {
                    lost.contradicted(answer.response.status());
                }
                return Ok(answer);
            }
            Err(now) if !call.is_repeatable && !now.untouched => return Err(now),
            Err(now) => {
                attempts += usize::from(!now.absent);
                let all = match lost {
                    Some(before) => before.and(now),
                    None => now,
                };
                if all.faults() > 1 || attempts > gateway.config.retries {
                    return Err(all);
                }
                lost = Some(all);
            }
        }
    }
}

/// Builds the client's response, whose body streams the replica's.
fn relayed(
    gateway: &Arc<Gateway>,
    call: ProxiedRequest,
    destination: &Destination,
    (charge, answer): (Charge, Answer),
    (permit, arrived): (RequestPermit, Instant),
) -> Response {
    let Answer { response, routed } = answer;
    let (mut parts, body) = response.into_parts();
    to_client(&mut parts);
    name_replica(&mut parts.headers, &gateway.config, &routed);
    if let Some(record) = &call.record {
        record.change(|facts| {
            facts.replica = Some(routed.address().clone());
            facts.pool = Some(destination.pool.name.clone());
            facts.decision = Some(routed.choice.to_string());
        });
    }
    let renamed = destination.renamed.as_deref();
    let model = renamed.or(call.asked.as_deref()).unwrap_or_default();
    let trip = RequestContext {
        model: model.to_owned(),
        gateway: gateway.clone(),
        pool: destination.pool.clone(),
        call,
    };
    let body = ResponseBody::new(
        trip,
        renamed,
        (charge, routed),
        body,
        &mut parts,
        permit,
        arrived,
    );
    Response::from_parts(parts, Body::new(body))
}
