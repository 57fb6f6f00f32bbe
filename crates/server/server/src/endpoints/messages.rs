//! Anthropic's `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_api_types::{MessageWriter, MessagesRequest, StreamOptions};
use penstock_http::request_id;

use super::messages_render::MessagesRender;
use super::prepared::{count, prepare};
use crate::app::App;
use crate::jobs::work_on;
use crate::request_meta::RequestMeta;
use crate::stream;
use penstock_api_http::{Failure, json};

/// Every delta has the usage, because the first event contains the number of prompt tokens.
const OPTIONS: StreamOptions = StreamOptions {
    include_usage: true,
    continuous_usage_stats: true,
};

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrival = RequestMeta::of(&request);
    let request_id = request_id(&request);
    let body = app.read_body(request).await?;
    let (prepared, capped) = work_on(&app, body, |job| {
        let request = MessagesRequest::parse(job.body)?;
        let mut prepared = prepare(job, request.chat).map_err(MessagesRequest::renamed)?;
        let capped = prepared.fit();
        Ok((prepared, capped))
    })
    .await?;
    let created = arrival.created(&prepared.common);
    let (common, choices) = prepared
        .submit(&app, arrival)
        .await
        .map_err(MessagesRequest::renamed)?;
    let identity = app.identity("msg", &request_id, common.model, created);
    let writer = MessageWriter::new(format!("msg_{request_id}"), identity.model);
    let render = MessagesRender::new(writer, capped);
    Ok(stream::answer(choices, render, common.stream.then_some(OPTIONS)).await?)
}

pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let body = app.read_body(request).await?;
    let tokens = work_on(&app, body, |job| {
        let request = MessagesRequest::parse(job.body)?;
        count(job, &request.chat).map_err(MessagesRequest::renamed)
    })
    .await?;
    let answer = serde_json::json!({ "input_tokens": tokens });
    Ok(json(answer.to_string().into_bytes()))
}
