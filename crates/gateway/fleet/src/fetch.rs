//! Small requests from the gateway itself to replicas, bounded in time and size.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::Request;
use http_body_util::{BodyExt, Limited};
use penstock_http::{Client, ClientError};

/// Status code and body of a response.
pub(crate) type Answer = (u16, Vec<u8>);

/// Why a request got no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoAnswer {
    /// Description for the log.
    pub reason: String,
    /// Whether the connection was refused.
    pub refused: bool,
}

impl NoAnswer {
    fn because(reason: impl ToString) -> Self {
        Self {
            reason: reason.to_string(),
            refused: false,
        }
    }
}

impl From<ClientError> for NoAnswer {
    fn from(error: ClientError) -> Self {
        Self {
            reason: error.to_string(),
            refused: matches!(error, ClientError::Refused(_)),
        }
    }
}

/// `GET`s a page of at most `max_bytes` bytes, within `patience` in total.
///
/// # Errors
/// [`NoAnswer`]
pub(crate) async fn get(
    client: &Client,
    url: &str,
    patience: Duration,
    max_bytes: usize,
) -> Result<Answer, NoAnswer> {
    let request = Request::get(url).body(Bytes::new());
    let request = request.map_err(NoAnswer::because)?;
    let answer = async {
        let response = client.send(request).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), max_bytes)
            .collect()
            .await;
        let body = body.map_err(NoAnswer::because)?;
        Ok((status, body.to_bytes().to_vec()))
    };
    match tokio::time::timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(_) => {
            let seconds = patience.as_secs_f64();
            Err(NoAnswer::because(format!("no answer in {seconds} s")))
        }
    }
}
