//! What happens around every request: its id, and its key.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, Request, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use penstock_openai::ApiError;
use subtle::{Choice, ConstantTimeEq};

use crate::app::App;
use crate::config::Config;
use crate::failure::Failure;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID: usize = 128;

/// Probes carry no keys.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// Behind this path, and at it, the admin key is asked for instead of the others.
const ADMIN: &str = "/v1/kv";

#[derive(Clone)]
struct RequestId(String);

/// Gives the request an id, which the response carries too, and turns it away without a valid key.
pub(crate) async fn envelope(
    State(app): State<Arc<App>>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let id = client_id(&request).unwrap_or_else(|| app.ids.hex());
    let response_id = HeaderValue::from_str(&id);
    request.extensions_mut().insert(RequestId(id));
    let mut response = match check_key(&app.config, &request) {
        Ok(()) => next.run(request).await,
        Err(error) => Failure(error).into_response(),
    };
    if let Ok(id) = response_id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// The id that [`envelope`] gave the request.
pub(crate) fn request_id(request: &Request<Body>) -> String {
    request
        .extensions()
        .get::<RequestId>()
        .map(|id| id.0.clone())
        .unwrap_or_default()
}

/// The client's own id, if it is short and of characters that are harmless in logs.
fn client_id(request: &Request<Body>) -> Option<String> {
    let id = request.headers().get(REQUEST_ID)?.to_str().ok()?;
    let harmless = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    (!id.is_empty() && id.len() <= MAX_REQUEST_ID && id.chars().all(harmless))
        .then(|| id.to_owned())
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

fn has_key(keys: &[String], request: &Request<Body>) -> bool {
    bearer(request).is_some_and(|key| is_known(keys, key))
}

fn bearer(request: &Request<Body>) -> Option<&[u8]> {
    let value = request.headers().get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}

/// Compares with every key, and every key in full, so that the time tells nothing but lengths.
fn is_known(keys: &[String], given: &[u8]) -> bool {
    let none = Choice::from(0);
    keys.iter()
        .fold(none, |found, key| found | key.as_bytes().ct_eq(given))
        .into()
}
