//! Small requests to replicas, bounded in time and size.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use http_body_util::{BodyExt, Limited};
use penstock_http::Client;

/// Status and body of an answer.
pub(crate) type Answer = (u16, Vec<u8>);

/// `GET`s a page of at most `max_bytes`, in `patience` from the first to the last byte.
///
/// # Errors
/// The reason, for the log.
pub(crate) async fn get(
    client: &Client,
    url: &str,
    patience: Duration,
    max_bytes: usize,
) -> Result<Answer, String> {
    let request = Request::get(url).body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let answer = async {
        let response = client
            .send(request)
            .await
            .map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), max_bytes)
            .collect()
            .await;
        let body = body.map_err(|error| error.to_string())?;
        Ok((status, body.to_bytes().to_vec()))
    };
    match tokio::time::timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer in {} s", patience.as_secs_f64())),
    }
}
