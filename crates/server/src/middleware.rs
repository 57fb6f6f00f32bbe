//! What happens to every request before its endpoint: an id, and the checks of its key and origin.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Method, Request, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use penstock_http::{has_key, with_request_id};
use penstock_openai::ApiError;

use crate::app::App;
use crate::config::Config;
use crate::failure::Failure;

/// Probes carry no keys.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// At and below this path the admin key is required instead of the others.
const ADMIN: &str = "/v1/kv";

/// Gives the request an id and rejects it without a valid key.
pub(crate) async fn identify_and_authorize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let authorized = |request: Request<Body>| async {
        let checked = check_key(&app.config, &request).and_then(|()| check_origin(&request));
        match checked {
            Ok(()) => next.run(request).await,
            Err(error) => Failure(error).into_response(),
        }
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

/// Refuses what a page of another site can have a browser send without asking first. The page
/// cannot read the answer, but it would have the work done.
fn check_origin(request: &Request<Body>) -> Result<(), ApiError> {
    let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    let Some(origin) = header(header::ORIGIN).filter(|_| request.method() == Method::POST) else {
        return Ok(());
    };
    let kind = header(header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    let asked_first = kind.trim_ascii().eq_ignore_ascii_case(b"application/json");
    let authority = origin.windows(3).position(|at| at == b"://");
    let own = authority.is_some_and(|at| header(header::HOST) == Some(&origin[at + 3..]));
    (asked_first || own)
        .then_some(())
        .ok_or_else(ApiError::cross_origin)
}

fn is_admin(path: &str) -> bool {
    path.strip_prefix(ADMIN)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
