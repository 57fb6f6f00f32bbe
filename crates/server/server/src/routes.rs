//! The routes of the server: the handler function of each path.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post};
use penstock_api_http::{guarded, method_not_allowed, no_route};

use crate::app::App;
use crate::endpoints::{
    chat, completions, embeddings, info, kv, messages, pairs, responses, tokenize,
};
use crate::load::LOAD_STREAM;

const METRICS: &str = "/metrics";

pub(crate) fn router(app: Arc<App>) -> Router {
    // With a metrics port, the main port does not serve `/metrics` and its stream.
    let elsewhere = app.config.metrics_port.is_some();
    let mut router = Router::new();
    for (path, methods) in routes() {
        if !(elsewhere && [METRICS, LOAD_STREAM].contains(&path)) {
            router = router.route(path, methods);
        }
    }
    router = router.merge(penstock_page::icon_routes());
    if app.config.ui {
        router = router.merge(penstock_page::file_routes());
    }
    router
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.guard.clone(), guarded))
        .with_state(app)
}

/// All paths. `penstock_api_types::openapi` describes the same set.
fn routes() -> Vec<(&'static str, MethodRouter<Arc<App>>)> {
    vec![
        ("/v1/chat/completions", post(chat::create)),
        ("/v1/completions", post(completions::create)),
        ("/v1/responses", post(responses::create)),
        ("/v1/responses/input_tokens", post(responses::count_tokens)),
        (
            "/v1/responses/{id}",
            get(responses::stored).delete(responses::stored),
        ),
        ("/v1/responses/{id}/cancel", post(responses::stored)),
        ("/v1/responses/{id}/input_items", get(responses::stored)),
        ("/v1/messages", post(messages::create)),
        ("/v1/messages/count_tokens", post(messages::count_tokens)),
        ("/v1/embeddings", post(embeddings::create)),
        ("/v1/rerank", post(pairs::rerank)),
        ("/v2/rerank", post(pairs::rerank)),
        ("/rerank", post(pairs::rerank)),
        ("/v1/score", post(pairs::score)),
        ("/score", post(pairs::score)),
        ("/v1/models", get(info::models)),
        ("/v1/models/{*id}", get(info::model)),
        ("/tokenize", post(tokenize::tokenize)),
        ("/detokenize", post(tokenize::detokenize)),
        ("/tokenizer_info", get(tokenize::info)),
        ("/v1/kv", delete(kv::clear).get(kv::report)),
        ("/v1/kv/pin", post(kv::pin)),
        ("/v1/kv/unpin", post(kv::unpin)),
        ("/", get(info::index)),
        ("/health", get(info::health)),
        ("/ping", get(info::health).post(info::health)),
        ("/ready", get(info::ready)),
        ("/version", get(info::version)),
        (METRICS, get(info::metrics)),
        (LOAD_STREAM, get(info::load)),
        ("/openapi.json", get(info::openapi)),
    ]
}

/// `/metrics`, its stream and the probes, for the metrics port.
pub(crate) fn metrics_router(app: Arc<App>) -> Router {
    Router::new()
        .route(METRICS, get(info::metrics))
        .route(LOAD_STREAM, get(info::load))
        .route("/health", get(info::health))
        .route("/ready", get(info::ready))
        .fallback(no_route)
        .with_state(app)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use penstock_api_types::openapi::ENDPOINTS;

    use super::routes;

    #[test]
    fn all_paths_are_described() {
        // A model's name may contain slashes, which OpenAPI does not allow in a path parameter.
        let routed = routes()
            .into_iter()
            .map(|(path, _)| path.replace("{*", "{"));
        let described = ENDPOINTS.iter().map(|endpoint| endpoint.path.to_owned());
        assert_eq!(routed.collect::<BTreeSet<_>>(), described.collect());
    }
}
