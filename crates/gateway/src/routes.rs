//! The routes.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{any, get, post};
use penstock_edge::{guarded, method_not_allowed, no_route};

use crate::exact::EXPLAIN;
use crate::explain::explain;
use crate::forward::forward;
use crate::gateway::Gateway;
use crate::info;

/// What replicas answer. Paths of `/v1` that have a line here have one in the counts of requests;
/// the others share one.
const FORWARDED: [&str; 14] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/{*path}",
    "/rerank",
    "/score",
    "/pooling",
    "/tokenize",
    "/detokenize",
];

/// All endpoints.
pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    let mut router = Router::new()
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
        .route("/", get(info::index))
        .route("/health", get(info::health))
        .route("/ping", any(info::health))
        .route("/ready", get(info::ready))
        .route("/version", get(info::version))
        .route(EXPLAIN, post(explain))
        .route("/metrics", get(info::metrics));
    for path in FORWARDED {
        router = router.route(path, post(forward));
    }
    router
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(gateway.guard.clone(), guarded))
        .with_state(gateway)
}
