//! Cross-origin requests of browsers: preflight, response headers, and refusals.
//!
//! Follows the Fetch standard (<https://fetch.spec.whatwg.org/#http-cors-protocol>). Without
//! allowed origins no preflight succeeds. Other sites could then send only simple requests, for
//! which browsers do not send a preflight; these are rejected as well.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::Response;
use penstock_api_types::ApiError;

/// Seconds for which a browser may cache a preflight response.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Response to a preflight from an allowed origin. Checked before the key, which browsers do not
/// send with a preflight. `None` for other requests.
pub(crate) fn preflight(allowed: &[String], request: &Request<Body>) -> Option<Response> {
    let headers = request.headers();
    let method = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    if request.method() != Method::OPTIONS {
        return None;
    }
    let origin = allowed_origin(allowed, headers)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, method.clone());
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    allow(answer, origin);
    Some(response)
}

/// Value of `Access-Control-Allow-Origin` for a request; `None` if its origin is missing or not
/// allowed.
pub(crate) fn allowed_origin(allowed: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    if allowed.iter().any(|each| each == "*") {
        return Some(HeaderValue::from_static("*"));
    }
    let known = allowed
        .iter()
        .any(|each| each.as_bytes() == origin.as_bytes());
    known.then(|| origin.clone())
}

/// Lets pages of `origin` read the response.
pub(crate) fn allow(headers: &mut HeaderMap, origin: HeaderValue) {
    const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, REQUEST_ID.into());
    headers.append(header::VARY, header::ORIGIN.into());
}

/// Rejects cross-origin requests that need no preflight. The page could not read the response, but
/// the server would do the work.
pub(crate) fn check_origin(allowed: &[String], request: &Request<Body>) -> Result<(), ApiError> {
    let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
    let Some(origin) = header(header::ORIGIN).filter(|_| request.method() == Method::POST) else {
        return Ok(());
    };
    let kind = header(header::CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
    let preflighted = kind.trim_ascii().eq_ignore_ascii_case(b"application/json");
    let authority = origin.windows(3).position(|at| at == b"://");
    let own = authority.is_some_and(|at| header(header::HOST) == Some(&origin[at + 3..]));
    let known = allowed.iter().any(|each| each.as_bytes() == origin);
    (preflighted || own || known)
        .then_some(())
        .ok_or_else(ApiError::cross_origin)
}
