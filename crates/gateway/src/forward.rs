//! The path of a request.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Request};
use axum::response::Response;
use penstock_edge::{AccessNote, Failure};
use penstock_openai::ApiError;
use penstock_routing::Unroutable;

use crate::attempt::{Answer, Lost};
use crate::call::Call;
use crate::charge::Charge;
use crate::failover::Trip;
use crate::flow::Turn;
use crate::gateway::{Gateway, Place};
use crate::headers::to_client;
use crate::hedge::attempt_hedged;
use crate::models::Destination;
use crate::relay::Relayed;

pub(crate) const DECISION: &str = "x-penstock-decision";

/// Any request with a body: admit, read, pick a replica, send, and go on with the next replica
/// until one answers.
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
    let place = gateway.admit()?;
    let mut call = Call::read(gateway, request).await?;
    let destination = gateway.destination(call.asked.as_deref(), None)?;
    if let Some(renamed) = &destination.renamed {
        call.rename(renamed);
    }
    call.tokenize(&destination.pool).await;
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
                let (answer, inside) = ((charge, answer), (place, arrived));
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

/// Asks one replica after the other, until one answers or as many have been asked as may be. One
/// more is asked about a request that a replica answers with 500: where that one serves it, the
/// fault was the first one's. What must not happen twice ends at the first replica that may have
/// done it.
async fn round(
    gateway: &Gateway,
    call: &Call,
    (destination, model): (&Destination, &str),
    turn: Turn,
    arrived: Instant,
) -> Result<Answer, Lost> {
    let (pool, mut turn) = (&*destination.pool, Some(turn));
    let (mut tried, mut attempts) = (Vec::new(), 0);
    let (mut last, mut fault): (Option<Lost>, Option<Lost>) = (None, None);
    let (mut refused, mut other) = (false, false);
    while attempts <= gateway.config.retries {
        let routed = match pool.route(model, &call.prompt, &tried) {
            Ok(routed) => routed,
            Err(Unroutable::Tried) => break,
            Err(none) => {
                last = last.or(Some(Lost::unroutable(destination, none)));
                break;
            }
        };
        drop(turn.take());
        gateway.metrics.decided(arrived.elapsed(), tried.len());
        tried.push(routed.decision.first().replica);
        match attempt_hedged(gateway, call, (pool, model), routed, &mut tried).await {
            Ok(answer) => {
                if let Some(fault) = fault {
                    fault.contradicted(answer.response.status());
                }
                return Ok(answer);
            }
            Err(lost) if !call.is_repeatable && !lost.untouched => return Err(lost),
            Err(lost) if lost.faults() > 0 => {
                let all = match fault.take() {
                    Some(before) => before.and(lost),
                    None => lost,
                };
                let enough = all.faults() > 1;
                fault = Some(all);
                if enough {
                    break;
                }
                attempts += 1;
            }
            Err(lost) => {
                attempts += usize::from(!lost.absent);
                refused |= lost.refused;
                other |= !lost.refused && !lost.absent;
                last = Some(lost);
            }
        }
    }
    let is_fault = fault.is_some();
    let mut lost = fault
        .or(last)
        .unwrap_or_else(|| Lost::unroutable(destination, Unroutable::Tried));
    // waiting helps where nothing but room is missing
    lost.refused = refused && !other && !is_fault;
    Err(lost)
}

/// The client's answer: the replica's, as it comes.
fn relayed(
    gateway: &Arc<Gateway>,
    call: Call,
    destination: &Destination,
    (charge, answer): (Charge, Answer),
    (place, arrived): (Place, Instant),
) -> Response {
    let Answer { response, routed } = answer;
    let (mut parts, body) = response.into_parts();
    to_client(&mut parts);
    if gateway.config.explain
        && let Ok(value) = HeaderValue::from_str(&routed.to_string())
    {
        parts.headers.insert(DECISION, value);
    }
    if gateway.config.access_log {
        let note = format!("{}: {routed}", destination.pool.name);
        parts.extensions.insert(AccessNote(note));
    }
    let renamed = destination.renamed.as_deref();
    let model = renamed.or(call.asked.as_deref()).unwrap_or_default();
    let trip = Trip {
        model: model.to_owned(),
        gateway: gateway.clone(),
        pool: destination.pool.clone(),
        call,
    };
    let body = Relayed::new(
        trip,
        renamed,
        (charge, routed),
        body,
        &mut parts,
        place,
        arrived,
    );
    Response::from_parts(parts, Body::new(body))
}
