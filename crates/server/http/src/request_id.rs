//! Request ids: the client's `x-request-id` or a generated one, echoed in the response.

use std::future::Future;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request};
use axum::response::Response;

use crate::RandomIds;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID: usize = 128;

#[derive(Clone)]
struct RequestId(String);

/// Assigns an id to the request and to the response of `next`.
pub async fn with_request_id<F: Future<Output = Response>>(
    ids: &RandomIds,
    mut request: Request<Body>,
    next: impl FnOnce(Request<Body>) -> F,
) -> Response {
    let id = id_of(request.headers(), ids);
    let header = HeaderValue::from_str(&id);
    request.extensions_mut().insert(RequestId(id));
    let mut response = next(request).await;
    if let Ok(id) = header {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// The id assigned by [`with_request_id`]; empty without one.
pub fn request_id(request: &Request<Body>) -> String {
    let id = request.extensions().get::<RequestId>();
    id.map(|id| id.0.clone()).unwrap_or_default()
}

/// The client's id, or a new one.
pub fn id_of(headers: &HeaderMap, ids: &RandomIds) -> String {
    client_id(headers).unwrap_or_else(|| ids.hex())
}

/// The client's id, if it is short and its characters are safe in logs.
fn client_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let harmless = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
    (!id.is_empty() && id.len() <= MAX_REQUEST_ID && id.chars().all(harmless))
        .then(|| id.to_owned())
}
