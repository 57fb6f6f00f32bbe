//! Models, health, version and metrics.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use penstock_openai::ApiError;
use penstock_openai::{Model, ModelList};

use crate::app::App;
use crate::failure::{Failure, json};

/// `GET /v1/models`.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    let root = app.config.model_path.to_string_lossy();
    let max_model_len = app.max_model_len();
    let model = |id| Model {
        id,
        object: "model",
        created: app.started(),
        owned_by: "penstock",
        root: &root,
        max_model_len,
    };
    let data = app
        .config
        .served_model_names
        .iter()
        .map(|name| model(name))
        .collect();
    json(
        serde_json::to_vec(&ModelList {
            object: "list",
            data,
        })
        .unwrap_or_default(),
    )
}

/// `GET /health`: 200 while an engine is ready and makes progress, else 503 with the reason.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    app.text()?;
    app.engine
        .healthy()
        .map_err(|reason| ApiError::unavailable(reason, 2))?;
    Ok(json(b"{\"status\":\"ok\"}".to_vec()))
}

/// `GET /ready`: as `/health`, and 503 while draining: a load balancer should send requests
/// elsewhere.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    if app.draining() {
        return Err(ApiError::unavailable("The server is shutting down.", 5).into());
    }
    health(State(app)).await
}

/// `GET /version`.
pub(crate) async fn version(State(app): State<Arc<App>>) -> Response {
    json(
        serde_json::json!({ "version": app.config.version })
            .to_string()
            .into_bytes(),
    )
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        app.metrics_page(),
    )
        .into_response()
}
