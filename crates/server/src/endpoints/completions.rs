//! `POST /v1/completions`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_http::{read_body, request_id};
use penstock_openai::ApiError;
use penstock_openai::{CompletionRequest, Prompt};
use penstock_text::TextModel;

use super::completions_render::{CompletionRender, ShownPrompt, Style};
use super::{on_text, text_error};
use crate::app::App;
use crate::failure::Failure;
use crate::stream;
use crate::submit::{EndpointParams, submit};

/// `max_tokens` of requests without it, as OpenAI and vLLM have it for this endpoint.
const DEFAULT_MAX_TOKENS: u32 = 16;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrived = Instant::now();
    let request_id = request_id(&request);
    let body = read_body(request, app.config.max_body_bytes).await?;
    let request = CompletionRequest::parse(&body)?;
    app.check_model(request.common.model.as_deref())?;
    let permit = app.admit(request.prompts.len())?;
    let style = Style {
        echo: request.echo,
        logprobs: request.logprobs.is_some(),
        token_ids: request.common.return_token_ids,
    };
    let params = EndpointParams {
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
        logprobs: request.logprobs,
        prompt_logprobs: request.logprobs.filter(|_| request.echo),
        arrived,
    };
    let CompletionRequest {
        common,
        prompts,
        add_special_tokens,
        ..
    } = request;
    let (prompts, shown) = on_text(&app, body.len(), move |text| {
        tokenized(text, prompts, add_special_tokens, style)
    })
    .await?;
    let choices = submit(&app, &common, &params, prompts, permit)?;
    let identity = app.identity("cmpl", &request_id, common.model);
    let render = CompletionRender::new(identity, app.text()?.tokenizer.clone(), style, shown);
    let response = if common.stream {
        stream::events(choices, render, common.stream_options).await
    } else {
        stream::whole(choices, render).await
    };
    Ok(response?)
}

/// The prompts as token ids, and what the responses show of each.
fn tokenized(
    text: &TextModel,
    prompts: Vec<Prompt>,
    add_special: bool,
    style: Style,
) -> Result<(Vec<Vec<u32>>, Vec<ShownPrompt>), ApiError> {
    let mut all = Vec::with_capacity(prompts.len());
    let mut shown = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let (tokens, written) = match prompt {
            Prompt::Tokens(tokens) => (tokens, None),
            Prompt::Text(written) => {
                let tokens = text.tokenizer.encode(&written, add_special);
                (
                    tokens.map_err(|error| text_error("prompt", &error))?,
                    Some(written),
                )
            }
        };
        let echoed = || written.unwrap_or_else(|| text.tokenizer.decode(&tokens, true));
        shown.push(ShownPrompt {
            text: if style.echo { echoed() } else { String::new() },
            tokens: if style.echo || style.token_ids {
                tokens.clone()
            } else {
                Vec::new()
            },
        });
        all.push(tokens);
    }
    Ok((all, shown))
}
