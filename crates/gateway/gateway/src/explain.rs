//! `POST /route/explain`: a dry run of the routing decision, with its reasons.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_api_http::{Failure, json};
use penstock_api_types::ApiError;
use penstock_routing::{Condition, Ranked, Replica};
use serde_json::{Value, json as value};

use crate::call::ProxiedRequest;
use crate::exact::TokensByTier;
use crate::gateway::Gateway;
use crate::pool::RoutingTrace;

/// The routing decision for the body, with the scores of every replica. Sends no request and
/// reserves no capacity. If the model's rule has several targets, one is drawn. Answers 404 unless
/// `explain` is enabled.
pub(crate) async fn explain(
    State(gateway): State<Arc<Gateway>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    if !gateway.config.explain {
        return Err(ApiError::no_route(request.uri().path()).into());
    }
    let mut call = ProxiedRequest::read(&gateway, request).await?;
    let destination = gateway.destination(call.asked.as_deref(), None)?;
    call.tokenize(&destination.pool).await;
    let pool = &destination.pool;
    let renamed = destination.renamed.as_deref();
    let model = renamed.or(call.asked.as_deref()).unwrap_or_default();
    let class = gateway.class(call.headers(), call.caller.as_deref(), &destination);
    call.prompt.priority = class.priority;
    let look = pool.explain(model, &call.prompt);
    let answer = value!({
        "asked": call.asked,
        "pool": *pool.name,
        "model": model,
        "priority": class.priority,
        "tenant": *class.tenant,
        "saturated": pool.flow.counts().saturated,
        "prompt_tokens": look.prompt_tokens,
        "decision": look.decision.as_ref().ok().map(ToString::to_string),
        "unroutable": look.decision.as_ref().err().map(ToString::to_string),
        "replicas": replicas(&look),
    });
    Ok(json(answer.to_string().into_bytes()))
}

/// The candidates in the order of their ranking, followed by the replicas that were filtered out.
fn replicas(look: &RoutingTrace) -> Vec<Value> {
    let all = &look.view.replicas;
    let Ok(decision) = &look.decision else {
        return all
            .iter()
            .enumerate()
            .map(|(place, one)| described(look, place, one))
            .collect();
    };
    let ranked = decision.ranked.iter().map(|ranked| {
        let mut found = described(look, ranked.place, &all[ranked.place]);
        found["total"] = ranked.total.into();
        found["scores"] = scores(ranked);
        found
    });
    let removed = decision.removed.iter().filter_map(|removed| {
        let place = all.iter().position(|one| one.id == removed.replica)?;
        let mut found = described(look, place, &all[place]);
        found["removed_by"] = removed.filter.into();
        Some(found)
    });
    ranked.chain(removed).collect()
}

/// Name, score and weight of each scorer.
pub(crate) fn scores(ranked: &Ranked) -> Value {
    let parts = ranked.parts.iter();
    parts
        .map(|(name, score, weight)| value!({"name": name, "score": score, "weight": weight}))
        .collect()
}

fn described(look: &RoutingTrace, place: usize, replica: &Replica) -> Value {
    let cache = look.caches.get(place).copied().unwrap_or_default();
    value!({
        "address": *replica.address,
        "condition": condition(replica.condition),
        "waiting": replica.waiting,
        "running": replica.running,
        "kv_use": replica.kv_use,
        "backlog_tokens": replica.backlog_tokens,
        "cache_fill": cache.fill,
        "cache_regret": cache.regret,
        "cached_tokens": look.cached.get(place).copied().unwrap_or(0.0),
        "held_tokens": look.held.get(place).copied().flatten().map(TokensByTier::json),
        "total": null,
        "scores": [],
        "removed_by": null,
    })
}

fn condition(condition: Condition) -> String {
    match condition {
        Condition::Warming(share) => format!("warming, {:.0}%", share * 100.0),
        other => other.word().to_owned(),
    }
}
