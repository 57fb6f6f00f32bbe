//! Endpoints answered by the gateway itself: models, health, version and metrics.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use penstock_api_http::{Failure, json};
use penstock_api_types::ApiError;
use serde_json::{Value, json as value};

use crate::gateway::Gateway;
use crate::paths::TEXT;

/// `GET /v1/models`: the models of all pools, without duplicates.
pub(crate) async fn models(State(gateway): State<Arc<Gateway>>) -> Response {
    answer(&models_page(&gateway, None))
}

/// The models of all pools, or of the pool `only`.
pub(crate) fn models_page(gateway: &Gateway, only: Option<&str>) -> Value {
    let names = gateway.models.names(only);
    let data: Vec<Value> = names.iter().map(|name| described(gateway, name)).collect();
    value!({"object": "list", "data": data})
}

/// `GET /v1/models/{id}`. Names may contain slashes.
pub(crate) async fn model(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let names = gateway.models.names(None);
    match names.contains(&id) {
        true => Ok(answer(&described(&gateway, &id))),
        false => Err(ApiError::model_not_found(&id, &names).into()),
    }
}

fn described(gateway: &Gateway, name: &str) -> Value {
    value!({"id": name, "object": "model", "created": gateway.started, "owned_by": "penstock"})
}

fn answer(body: &Value) -> Response {
    json(body.to_string().into_bytes())
}

/// `GET /`, or the root path: the web page for browsers, a short description for other clients.
/// `path` is the path as the client sent it.
pub(crate) async fn index(
    State(gateway): State<Arc<Gateway>>,
    headers: HeaderMap,
    path: &str,
) -> Response {
    if gateway.config.ui && penstock_page::wants_page(&headers) {
        return penstock_page::index(&headers, path);
    }
    let version = &gateway.config.version;
    let names = gateway.models.names(None).join(", ");
    let mut response = format!(
        "Penstock {version}: a gateway before replicas that serve {names}, with the OpenAI API at \
         /v1.\n\nGET /v1/models\nGET /health\nGET /metrics\n"
    )
    .into_response();
    penstock_page::vary(&mut response);
    response
}

/// `GET /health`: 200 while at least one replica accepts requests.
pub(crate) async fn health(State(gateway): State<Arc<Gateway>>) -> Result<Response, Failure> {
    match gateway.has_replica() {
        true => Ok(answer(&value!({"status": "ok"}))),
        false => Err(ApiError::unavailable("No replica takes requests.", 2).into()),
    }
}

/// `GET /ready`: like `/health`, but 503 while the gateway drains.
pub(crate) async fn ready(State(gateway): State<Arc<Gateway>>) -> Result<Response, Failure> {
    if gateway.draining() {
        return Err(ApiError::unavailable("The gateway is shutting down.", 5).into());
    }
    health(State(gateway)).await
}

/// `GET /version`
pub(crate) async fn version(State(gateway): State<Arc<Gateway>>) -> Response {
    answer(&value!({"version": gateway.config.version}))
}

/// Paths of the OpenAPI document that the gateway answers itself.
const DESCRIBED: [&str; 9] = [
    "/",
    "/health",
    "/metrics",
    "/openapi.json",
    "/ping",
    "/ready",
    "/v1/models",
    "/v1/models/{id}",
    "/version",
];

/// `GET /openapi.json`: the part of a Penstock server's document that covers the routed endpoints.
/// Replicas of other kinds may have other fields.
pub(crate) async fn openapi(State(gateway): State<Arc<Gateway>>) -> Response {
    let mut document = penstock_api_types::openapi::document(&gateway.config.version);
    if let Some(paths) = document["paths"].as_object_mut() {
        paths.retain(|path, _| DESCRIBED.contains(&&**path) || TEXT.contains(&&**path));
    }
    answer(&document)
}

/// `GET /metrics`
pub(crate) async fn metrics(State(gateway): State<Arc<Gateway>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], gateway.metrics_page()).into_response()
}
