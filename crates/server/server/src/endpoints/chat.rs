//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_api_types::ChatRequest;
use penstock_http::request_id;

use super::chat_render::{ChatRender, ChatStyle};
use super::prepared::prepare;
use crate::app::App;
use crate::jobs::work_on;
use crate::request_meta::RequestMeta;
use crate::stream;
use penstock_api_http::Failure;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrival = RequestMeta::of(&request);
    let request_id = request_id(&request);
    let body = app.read_body(request).await?;
    let (prepared, style) = work_on(&app, body, |job| {
        let request = ChatRequest::parse(job.body)?;
        let style = ChatStyle::of(&request);
        Ok((prepare(job, request)?, style))
    })
    .await?;
    let (model, created) = (
        prepared.common.model.clone(),
        arrival.created(&prepared.common),
    );
    let identity = app.identity("chatcmpl", &request_id, model, created);
    let tokenizer = app.text()?.tokenizer.clone();
    let choices = prepared.common.n;
    let render = ChatRender::new(identity, tokenizer, style, &prepared.prompt, choices);
    let (common, choices) = prepared.submit(&app, arrival).await?;
    Ok(stream::answer(
        choices,
        render,
        common.stream.then_some(common.stream_options),
    )
    .await?)
}
