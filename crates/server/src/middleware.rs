//! What happens to every request before its endpoint: an id, and the checks of its key and origin.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use penstock_http::{has_key, request_id, with_request_id};
use penstock_openai::ApiError;

use crate::app::App;
use crate::config::Config;
use crate::cors;
use crate::endpoints::messages;
use crate::failure::Failure;

/// Probes carry no keys.
const OPEN: [&str; 3] = ["/health", "/ping", "/ready"];

/// At and below this path the admin key is required instead of the others.
const ADMIN: &str = "/v1/kv";

/// Gives the request an id and rejects it without a valid key.
pub(crate) async fn identify_and_authorize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let authorized = |request: Request<Body>| async {
        let origins = &app.config.allowed_origins;
        if let Some(response) = cors::preflight(origins, &request) {
            return response;
        }
        let origin = cors::allowed_origin(origins, request.headers());
        let anthropic = messages::is_here(request.uri().path()).then(|| request_id(&request));
        let checked =
            check_key(&app.config, &request).and_then(|()| cors::check_origin(origins, &request));
        let mut response = match checked {
            Ok(()) => next.run(request).await,
            Err(error) => Failure(error).into_response(),
        };
        if let Some(request_id) = anthropic {
            messages::in_own_form(&mut response, &request_id);
        }
        if let Some(origin) = origin {
            cors::allow(response.headers_mut(), origin);
        }
        response
    };
    with_request_id(&app.ids, request, authorized).await
}

fn check_key(config: &Config, request: &Request<Body>) -> Result<(), ApiError> {
    let path = request.uri().path();
    if is_admin(path) {
        let key = config.admin_api_key.as_ref();
        let key = key.ok_or_else(ApiError::admin_disabled)?;
        let known = has_key(std::slice::from_ref(key), request);
        return known.then_some(()).ok_or_else(ApiError::admin_unauthorized);
    }
    let allowed =
        config.api_keys.is_empty() || OPEN.contains(&path) || has_key(&config.api_keys, request);
    allowed.then_some(()).ok_or_else(ApiError::unauthorized)
}

fn is_admin(path: &str) -> bool {
    path.strip_prefix(ADMIN)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
