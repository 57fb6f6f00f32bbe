//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_http::request_id;
use penstock_openai::{ApiError, ChatRequest};

use super::chat_render::ChatRender;
use crate::app::App;
use crate::arrival::Arrival;
use crate::failure::Failure;
use crate::jobs::work_on;
use crate::stream;
use crate::submit::{EndpointParams, submit, truncate};

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrival = Arrival::of(&request);
    let request_id = request_id(&request);
    let body = app.read_body(request).await?;
    let (common, logprobs, prompt, permit) = work_on(&app, body, |job| {
        let request = ChatRequest::parse(job.body)?;
        if request.tools.callable() {
            return Err(ApiError::unsupported(
                "tools",
                "leave it out or send it empty",
            ));
        }
        job.app.check_model(request.common.model.as_deref())?;
        let permit = job.app.admit(request.common.n)?;
        let length = request.common.prompt_limit(permit.limits.max_model_len);
        let mut prompt = job.encode_chat(
            &request.messages,
            request.add_generation_prompt,
            &request.template_kwargs,
            length,
        )?;
        truncate(&mut prompt, &request.common, permit.limits);
        Ok((request.common, request.logprobs, prompt, permit))
    })
    .await?;
    let shown_prompt = common.return_token_ids.then(|| prompt.clone());
    let params = EndpointParams {
        default_max_tokens: None,
        logprobs,
        prompt_logprobs: None,
        arrival,
    };
    let choices = submit(&app, &common, &params, vec![prompt], permit)?;
    let identity = app.identity("chatcmpl", &request_id, common.model);
    let tokenizer = app.text()?.tokenizer.clone();
    let render = ChatRender::new(
        identity,
        tokenizer,
        logprobs.is_some(),
        shown_prompt,
        choices.len(),
    );
    let response = if common.stream {
        stream::events(choices, render, common.stream_options).await
    } else {
        stream::whole(choices, render).await
    };
    Ok(response?)
}
