//! Errors of `/v1/messages` in Anthropic's format.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use penstock_api_types::{ApiError, anthropic_error};
use penstock_http::is_below;

const PATH: &str = "/v1/messages";

/// Whether a path belongs to Anthropic's API.
pub fn is_here(path: &str) -> bool {
    is_below(path, PATH)
}

/// Rewrites an error response in Anthropic's format, with the request id in the header that
/// Anthropic's clients read.
pub(crate) fn in_own_form(response: &mut Response, request_id: &str) {
    if let Some(error) = response.extensions().get::<ApiError>() {
        let body = Body::from(anthropic_error(error, request_id));
        *response.body_mut() = body;
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    if let Ok(id) = HeaderValue::from_str(request_id) {
        response.headers_mut().insert("request-id", id);
    }
}
