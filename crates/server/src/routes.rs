//! The routes.

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use penstock_openai::ApiError;

use crate::app::App;
use crate::endpoints::{chat, completions, info, kv, tokenize};
use crate::failure::Failure;
use crate::middleware::identify_and_authorize;

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(info::models))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/v1/kv", delete(kv::clear).get(kv::report))
        .route("/v1/kv/pin", post(kv::pin))
        .route("/v1/kv/unpin", post(kv::unpin))
        .route("/health", get(info::health))
        .route("/ready", get(info::ready))
        .route("/version", get(info::version))
        .route("/metrics", get(info::metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), identify_and_authorize))
        .with_state(app)
}

async fn no_route(uri: Uri) -> Failure {
    Failure(ApiError::no_route(uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Failure {
    Failure(ApiError::method_not_allowed(method.as_str(), uri.path()))
}
