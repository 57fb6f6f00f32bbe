//! API keys in the Authorization header, or in `x-api-key` as clients of Anthropic's API send them.

use axum::body::Body;
use axum::http::{HeaderValue, Request, header};
use subtle::{Choice, ConstantTimeEq};

/// Whether the request carries one of `keys`. Every key is compared in full, so
/// that the time taken reveals only lengths.
pub fn has_key(keys: &[String], request: &Request<Body>) -> bool {
    let x_api_key = || {
        request
            .headers()
            .get("x-api-key")
            .map(HeaderValue::as_bytes)
    };
    let Some(given) = bearer(request).or_else(x_api_key) else {
        return false;
    };
    let found = keys.iter().fold(Choice::from(0), |found, key| {
        found | key.as_bytes().ct_eq(given)
    });
    found.into()
}

fn bearer(request: &Request<Body>) -> Option<&[u8]> {
    let value = request.headers().get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}
