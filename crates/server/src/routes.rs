//! The routes.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{delete, get, post};
use penstock_openai::ApiError;

use crate::app::App;
use crate::endpoints::{chat, completions, info, kv, messages, responses, tokenize};
use crate::failure::Failure;
use crate::middleware::identify_and_authorize;

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::count_tokens))
        .route(
            "/v1/responses/{id}",
            get(responses::stored).delete(responses::stored),
        )
        .route("/v1/responses/{id}/cancel", post(responses::stored))
        .route("/v1/responses/{id}/input_items", get(responses::stored))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/v1/kv", delete(kv::clear).get(kv::report))
        .route("/v1/kv/pin", post(kv::pin))
        .route("/v1/kv/unpin", post(kv::unpin))
        .route("/", get(info::index))
        .route("/health", get(info::health))
        .route("/ping", get(info::health).post(info::health))
        .route("/ready", get(info::ready))
        .route("/version", get(info::version))
        .route("/metrics", get(info::metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), identify_and_authorize))
        .with_state(app)
}

/// A path with a slash at its end is redirected to the one without, by 307: the method and the body
/// are sent again.
async fn no_route(uri: Uri) -> Response {
    let path = uri.path();
    match path.trim_end_matches('/') {
        bare if bare.len() < path.len() && bare.starts_with('/') && !bare.starts_with("//") => {
            let query = uri
                .query()
                .map_or(String::new(), |query| format!("?{query}"));
            Redirect::temporary(&format!("{bare}{query}")).into_response()
        }
        _ => Failure(ApiError::no_route(path)).into_response(),
    }
}

async fn method_not_allowed(method: Method, uri: Uri) -> Failure {
    Failure(ApiError::method_not_allowed(method.as_str(), uri.path()))
}
