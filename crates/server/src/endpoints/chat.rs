//! `POST /v1/chat/completions`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_http::{read_body, request_id};
use penstock_openai::ChatRequest;

use super::chat_render::ChatRender;
use super::{on_text, text_error};
use crate::app::App;
use crate::failure::Failure;
use crate::stream;
use crate::submit::{EndpointParams, submit};

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrived = Instant::now();
    let request_id = request_id(&request);
    let body = read_body(request, app.config.max_body_bytes).await?;
    let ChatRequest {
        common,
        messages,
        add_generation_prompt,
        logprobs,
        template_kwargs,
    } = ChatRequest::parse(&body)?;
    app.check_model(common.model.as_deref())?;
    let permit = app.admit(1)?;
    let prompt = on_text(&app, body.len(), move |text| {
        text.encode_chat(&messages, add_generation_prompt, None, &template_kwargs)
            .map_err(|error| text_error("messages", &error))
    })
    .await?;
    let shown_prompt = common.return_token_ids.then(|| prompt.clone());
    let params = EndpointParams {
        default_max_tokens: None,
        logprobs,
        prompt_logprobs: None,
        arrived,
    };
    let choices = submit(&app, &common, &params, vec![prompt], permit)?;
    let identity = app.identity("chatcmpl", &request_id, common.model);
    let tokenizer = app.text()?.tokenizer.clone();
    let render = ChatRender::new(identity, tokenizer, logprobs.is_some(), shown_prompt);
    let response = if common.stream {
        stream::events(choices, render, common.stream_options).await
    } else {
        stream::whole(choices, render).await
    };
    Ok(response?)
}
