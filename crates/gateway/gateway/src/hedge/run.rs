//! One attempt at serving a request, or two in parallel.

use std::pin::pin;
use std::time::Instant;

use penstock_routing::ReplicaId;

use crate::attempt::{Answer, AttemptError, attempt};
use crate::call::ProxiedRequest;
use crate::gateway::Gateway;
use crate::headers::is_stream;
use crate::hedge::HedgeSettings;
use crate::hedge::state::Hedge;
use crate::members::Members;
use crate::pool::{Pool, Routed};

/// Sends the request to one replica, and to a second one if the pool hedges and no response has
/// begun in time. The attempt that loses is dropped. The drop releases its reservation and closes
/// its connection, so that the replica stops the work. The second replica is added to `tried`.
pub(crate) async fn attempt_hedged(
    gateway: &Gateway,
    call: &ProxiedRequest,
    (pool, model): (&Pool, &str),
    routed: Routed,
    tried: &mut Vec<ReplicaId>,
) -> Result<Answer, AttemptError> {
    let first = attempt(gateway, call, &call.body, pool, routed);
    let hedging = &pool.hedging;
    let Some(settings) = hedging.settings() else {
        return first.await;
    };
    let sent = Instant::now();
    let mut first = pin!(first);
    let early = match hedging.patience(&settings) {
        Some(patience) => tokio::time::timeout(patience, &mut first).await.ok(),
        None => Some(first.as_mut().await),
    };
    let answer = match early {
        Some(answer) => answer,
        None => match second(call, (pool, model), &settings, tried) {
            Ok(routed) => {
                let second = attempt(gateway, call, &call.body, pool, routed);
                either(pool, first, pin!(second)).await
            }
            Err(none) => {
                hedging.count(none);
                first.await
            }
        },
    };
    let begun = answer.as_ref().ok();
    if begun.is_some_and(|answer| is_stream(answer.response.headers())) {
        hedging.began(sent.elapsed());
    }
    answer
}

/// Picks a second replica and reserves capacity there, unless a condition excludes hedging.
fn second(
    call: &ProxiedRequest,
    (pool, model): (&Pool, &str),
    settings: &HedgeSettings,
    tried: &mut Vec<ReplicaId>,
) -> Result<Routed, Hedge> {
    if !may_be_hedged(call, settings) {
        return Err(Hedge::Request);
    }
    if pool.flow.is_saturated() {
        return Err(Hedge::Saturated);
    }
    if !pool.hedging.take() {
        return Err(Hedge::Budget);
    }
    let routed = pool.route(model, &call.prompt, tried);
    let routed = routed.map_err(|_| Hedge::NoReplica)?;
    tried.push(routed.choice.decision.first().replica);
    Ok(routed)
}

/// Whether two replicas may compute the request. Only streams qualify: the header of a non-streamed
/// response is sent when the response is complete, so a late header does not indicate a slow
/// replica.
fn may_be_hedged(call: &ProxiedRequest, settings: &HedgeSettings) -> bool {
    let short = call.body.len() <= settings.max_bytes;
    let members = short.then(|| Members::of(&call.body)).flatten();
    members.is_some_and(|members| members.is_stream() && members.are_repeatable(call.path()))
}

/// The first response. If one attempt fails, the result of the other attempt.
async fn either<F, S>(
    pool: &Pool,
    mut first: std::pin::Pin<&mut F>,
    mut second: std::pin::Pin<&mut S>,
) -> Result<Answer, AttemptError>
where
    F: Future<Output = Result<Answer, AttemptError>>,
    S: Future<Output = Result<Answer, AttemptError>>,
{
    let (answer, won) = tokio::select! {
        biased;
        answer = &mut first => match answer {
            Ok(answer) => (Ok(answer), false),
            Err(lost) => {
                let answer = instead_of(lost, second).await;
                let won = answer.is_ok();
                (answer, won)
            }
        },
        answer = &mut second => match answer {
            Ok(answer) => (Ok(answer), true),
            Err(lost) => (instead_of(lost, first).await, false),
        },
    };
    pool.hedging
        .count(if won { Hedge::Won } else { Hedge::Lost });
    answer
}

/// The result of the `other` attempt after the first one failed. If both failed, the merged
/// failures.
async fn instead_of(
    lost: AttemptError,
    other: impl Future<Output = Result<Answer, AttemptError>>,
) -> Result<Answer, AttemptError> {
    match other.await {
        Ok(answer) => {
            lost.contradicted(answer.response.status());
            Ok(answer)
        }
        Err(later) => Err(lost.and(later)),
    }
}
