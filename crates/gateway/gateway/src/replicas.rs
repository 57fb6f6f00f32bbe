//! `GET /replicas`: the replicas of all pools, and the most recent picks
//! (docs/gateway-reference.md).

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::response::Response;
use penstock_api_http::json;
use penstock_fleet::{LoadStatus, ReplicaStatus};
use penstock_routing::Pace;
use serde_json::{Value, json as value};

use crate::explain::scores;
use crate::gateway::Gateway;
use crate::picks::Pick;
use crate::pool::Pool;

pub(crate) async fn replicas(State(gateway): State<Arc<Gateway>>) -> Response {
    let now = SystemTime::now();
    let pools = gateway.models.pools();
    let pools: Vec<Value> = pools.iter().map(|pool| pool_row(pool, now)).collect();
    let picks = gateway.picks.list();
    let page = value!({
        "version": gateway.config.version,
        "time": unix(now),
        "requests_open": gateway.open_requests(),
        "draining": gateway.draining(),
        "pools": pools,
        "picks": picks.iter().map(pick_row).collect::<Vec<Value>>(),
    });
    json(page.to_string().into_bytes())
}

fn pool_row(pool: &Pool, now: SystemTime) -> Value {
    let (statuses, flow) = (pool.fleet.statuses(), pool.flow.counts());
    let rows: Vec<Value> = statuses.iter().map(|one| replica_row(one, now)).collect();
    value!({
        "name": *pool.name,
        "saturated": flow.saturated,
        "queued": flow.bands.iter().map(|(_, requests, _)| requests).sum::<usize>(),
        "replicas": rows,
    })
}

fn replica_row(one: &ReplicaStatus, now: SystemTime) -> Value {
    let models = one.models.as_ref();
    let models = models.map(|models| models.iter().map(|name| &**name).collect::<Vec<&str>>());
    let last_error = one.last_error.as_ref().map(|error| {
        let at = now.checked_sub(error.ago).unwrap_or(UNIX_EPOCH);
        value!({"time": unix(at), "message": *error.message})
    });
    value!({
        "name": *one.name,
        "address": *one.address,
        "models": models,
        "condition": one.condition.word(),
        "takes_requests": one.condition.takes_requests(),
        "reason": one.reason,
        "breaker": one.breaker.word(),
        "in_flight": one.in_flight,
        "picks": one.picks,
        "errors": one.errors,
        "restarts": one.restarts,
        "load": load(&one.load),
        "pace": one.pace.as_ref().map(pace),
        "output_tokens_per_s": rounded(one.output_tokens_per_s),
        "last_error": last_error,
    })
}

fn load(load: &LoadStatus) -> Value {
    value!({
        "source": load.source.word(),
        "age_s": load.age.map(|age| rounded(age.as_secs_f64())),
        "engine": load.engine,
        "running": load.running as u64,
        "waiting": load.waiting as u64,
        "backlog_tokens": load.backlog_tokens as u64,
        "kv_use": load.kv_use.map(|share| rounded(share.into())),
        "kv_tokens": load.kv_tokens.map(|tokens| tokens as u64),
    })
}

fn pace(pace: &Pace) -> Value {
    let microseconds = |seconds: f32| (f64::from(seconds) * 1e6).round() / 1e6;
    value!({
        "prefill_tokens_per_s": rounded(pace.prefill_tokens_per_s.into()),
        "decode_s": microseconds(pace.decode_s),
        "decode_s_per_sequence": microseconds(pace.decode_s_per_sequence),
    })
}

fn pick_row(pick: &Pick) -> Value {
    let first = pick.choice.decision.first();
    value!({
        "time": unix(pick.at),
        "request_id": pick.request_id,
        "pool": *pick.pool,
        "replica": *first.address,
        "name": *pick.name,
        "decision": pick.choice.to_string(),
        "total": first.total,
        "scores": scores(first),
    })
}

/// Seconds of Unix time.
fn unix(at: SystemTime) -> f64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    rounded(since.as_secs_f64())
}

/// Rounds to three decimal places.
fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}
