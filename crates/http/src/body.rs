//! Request bodies, read within bounds of size and time.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Why a request body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the request body is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the request body did not arrive within {seconds} s")]
    Timeout { seconds: u64 },
    #[error("the request body ended early")]
    EndedEarly,
}

/// The whole body, of at most `limit` bytes, read for at most 60 s.
///
/// # Errors
/// [`BodyError`]. Of a body over the limit as much again is read and dropped: closing a connection
/// with unread input resets it, and the client would lose the response that says why.
pub async fn read_body(request: Request<Body>, limit: usize) -> Result<Vec<u8>, BodyError> {
    let seconds = TIMEOUT.as_secs();
    let collected = tokio::time::timeout(TIMEOUT, collect(request.into_body(), limit)).await;
    collected.unwrap_or(Err(BodyError::Timeout { seconds }))
}

async fn collect(mut body: Body, limit: usize) -> Result<Vec<u8>, BodyError> {
    let mut bytes = Vec::new();
    let mut total = 0usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| BodyError::EndedEarly)?;
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
        return Err(BodyError::TooLarge { limit });
    }
    Ok(bytes)
}
