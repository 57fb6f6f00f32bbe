//! Models, health, version and metrics.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use penstock_api_types::ApiError;
use penstock_api_types::{Model, ModelList};
use serde::Serialize;

use crate::app::App;
use crate::load::MAX_STREAMS;
use penstock_api_http::{Failure, json};

/// `GET /v1/models`.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    let names = app.config.served_model_names.iter();
    let data = names.map(|name| described(&app, name)).collect();
    answer(&ModelList {
        object: "list",
        data,
    })
}

/// `GET /v1/models/{id}`. Names may contain slashes.
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    app.check_model(Some(&id))?;
    Ok(answer(&described(&app, &id)))
}

/// `root` (the model's path in vLLM) is the first served name, so the path is not disclosed.
fn described<'a>(app: &'a App, id: &'a str) -> Model<'a> {
    Model {
        id,
        object: "model",
        created: app.started(),
        owned_by: "penstock",
        root: app
            .config
            .served_model_names
            .first()
            .map_or(id, String::as_str),
        max_model_len: app.max_model_len(),
    }
}

fn answer(body: &impl Serialize) -> Response {
    // Plain data with string keys always serialises.
    json(serde_json::to_vec(body).unwrap_or_default())
}

/// `GET /`: the web page for browsers, a short description for others.
pub(crate) async fn index(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if app.config.ui && penstock_page::wants_page(&headers) {
        return penstock_page::index(&headers, "/");
    }
    let names = app.config.served_model_names.join(", ");
    let version = &app.config.version;
    let mut response = format!(
        "Penstock {version} serves {names} here, with the OpenAI API at /v1.\n\n\
         POST /v1/chat/completions\nPOST /v1/completions\nPOST /v1/responses\n\
         POST /v1/messages\nPOST /v1/embeddings\nPOST /v1/rerank\nPOST /v1/score\n\
         GET  /v1/models\n\
         GET  /health\nGET  /metrics\nGET  /openapi.json\n"
    )
    .into_response();
    penstock_page::vary(&mut response);
    response
}

/// `GET /health`: 200 while the engine is ready and healthy, else 503 with the reason.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    app.text()?;
    app.engine
        .healthy()
        .map_err(|reason| ApiError::unavailable(reason, 2))?;
    Ok(json(b"{\"status\":\"ok\"}".to_vec()))
}

/// `GET /ready`: like `/health`, but 503 while draining, so that load balancers use other servers.
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

/// `GET /openapi.json`.
pub(crate) async fn openapi(State(app): State<Arc<App>>) -> Response {
    answer(&penstock_api_types::openapi::document(&app.config.version))
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

/// `GET /metrics/stream`: a stream of load updates.
pub(crate) async fn load(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    let body = app.load_streams.open(&app.engine).ok_or_else(|| {
        let message = format!("{MAX_STREAMS} streams of the load are open, which is the most.");
        ApiError::unavailable(message, 5)
    })?;
    let headers = [
        (header::CONTENT_TYPE, "application/x-ndjson"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, body).into_response())
}
