//! Reading request bodies within bounds of size and time.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use penstock_openai::ApiError;

/// A client that has not sent its body after this long is cut off.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The whole body, of at most `limit` bytes.
pub(crate) async fn read(request: Request<Body>, limit: usize) -> Result<Vec<u8>, ApiError> {
    tokio::time::timeout(TIMEOUT, collect(request.into_body(), limit))
        .await
        .unwrap_or_else(|_| Err(ApiError::request_timeout(TIMEOUT.as_secs())))
}

/// Of an oversized body as much again is read and dropped: a connection closed with unread input
/// resets, and the client would lose the 413 that says why.
async fn collect(mut body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let mut total = 0usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::bad_request("The request body ended early."))?;
        let Some(data) = frame.data_ref() else {
            continue;
        };
        total = total.saturating_add(data.len());
        if total <= limit {
            bytes.extend_from_slice(data);
        } else if total / 2 > limit {
            break;
        } else {
            bytes = Vec::new();
        }
    }
    if total > limit {
        Err(ApiError::body_too_large(limit))
    } else {
        Ok(bytes)
    }
}
