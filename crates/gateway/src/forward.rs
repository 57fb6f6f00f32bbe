//! The path of a request.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Request};
use axum::response::Response;
use penstock_edge::{AccessNote, Failure};
use penstock_openai::ApiError;
use penstock_routing::{ReplicaId, Unroutable};

use crate::attempt::{Answer, Lost};
use crate::call::Call;
use crate::charge::Charge;
use crate::failover::Trip;
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
    let mut turn = Some(
        flow.pass(&class, call.body_bytes(), call.prompt.bytes)
            .await?,
    );
    let (pool, caller) = (destination.pool.clone(), call.caller.clone());
    let mut charge = Charge::begin(pool, caller, call.price, &call.prompt);
    let mut tried: Vec<ReplicaId> = Vec::new();
    let mut last = None;
    let mut attempts = 0;
    while attempts <= gateway.config.retries {
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
        let at = (&*destination.pool, model);
        match attempt_hedged(gateway, &call, at, routed, &mut tried).await {
            Ok(answer) => {
                let inside = (place, arrived);
                return Ok(relayed(
                    gateway,
                    call,
                    &destination,
                    (charge, answer),
                    inside,
                ));
            }
            Err(lost) => {
                attempts += usize::from(!lost.absent);
                last = Some(lost);
            }
        }
    }
    charge.refund();
    last.unwrap_or_else(|| Lost::unroutable(&destination, Unroutable::Tried))
        .into_answer()
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
