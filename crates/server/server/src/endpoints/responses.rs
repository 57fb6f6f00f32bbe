//! `POST /v1/responses`. Nothing is stored.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Request;
use axum::response::Response;
use penstock_api_types::{ApiError, Echo, InputTokens, ResponseWriter, ResponsesRequest};
use penstock_http::request_id;

use super::prepared::{count, prepare};
use super::responses_render::ResponsesRender;
use crate::app::App;
use crate::jobs::work_on;
use crate::request_meta::RequestMeta;
use crate::stream;
use penstock_api_http::{Failure, json};

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrival = RequestMeta::of(&request);
    let request_id = request_id(&request);
    let body = app.read_body(request).await?;
    let (mut echo, prepared) = work_on(&app, body, |job| {
        let request = ResponsesRequest::parse(job.body)?;
        let mut prepared = prepare(job, request.chat).map_err(ResponsesRequest::renamed)?;
        prepared.fit();
        Ok((request.echo, prepared))
    })
    .await?;
    show_defaults(&mut echo, &app);
    let logprobs = prepared.logprobs.is_some();
    let created = arrival.created(&prepared.common);
    let (common, choices) = prepared
        .submit(&app, arrival)
        .await
        .map_err(ResponsesRequest::renamed)?;
    let identity = app.identity("resp", &request_id, common.model, created);
    let id = format!("resp_{request_id}");
    let writer = ResponseWriter::new(id, identity.created, identity.model, echo);
    let tokenizer = app.text()?.tokenizer.clone();
    let render = ResponsesRender::new(writer, tokenizer, logprobs);
    Ok(stream::answer(
        choices,
        render,
        common.stream.then_some(common.stream_options),
    )
    .await?)
}

/// Fills in the server's default sampling parameters, which responses echo.
fn show_defaults(echo: &mut Echo, app: &App) {
    let defaults = &app.config.generation_defaults;
    echo.temperature = echo.temperature.or(defaults.temperature).or(Some(1.0));
    echo.top_p = echo.top_p.or(defaults.top_p).or(Some(1.0));
}

/// `POST /v1/responses/input_tokens`.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let body = app.read_body(request).await?;
    let input_tokens = work_on(&app, body, |job| {
        let request = ResponsesRequest::parse(job.body)?;
        count(job, &request.chat).map_err(ResponsesRequest::renamed)
    })
    .await?;
    let answer = InputTokens {
        object: "response.input_tokens",
        input_tokens,
    };
    // Plain data with string keys always serialises.
    Ok(json(serde_json::to_vec(&answer).unwrap_or_default()))
}

/// Endpoints that need a stored response: always an error.
pub(crate) async fn stored(Path(id): Path<String>) -> Failure {
    Failure(ApiError::not_stored(&id))
}
