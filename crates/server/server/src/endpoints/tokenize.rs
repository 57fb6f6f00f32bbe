//! `POST /tokenize`, `POST /detokenize` and `GET /tokenizer_info`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_api_types::ApiError;
use penstock_api_types::{DetokenizeRequest, TokenizeInput, TokenizeRequest};
use penstock_tokenizer::{ChatTemplate, Conversation};
use serde_json::json;

use super::prepared::check_template;
use crate::app::App;
use crate::jobs::{Job, work_on};
use crate::lengths::truncate;
use penstock_api_http::{Failure, json};

pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let body = app.read_body(request).await?;
    let answer = work_on(&app, body, |job| {
        let request = TokenizeRequest::parse(job.body)?;
        job.app.check_model(request.model.as_deref())?;
        let mut tokens = encoded(job, &request.input)?;
        let window = job.app.max_model_len().unwrap_or(u32::MAX);
        truncate(&mut tokens, request.truncation, window);
        let strings = |id: &u32| job.text.tokenizer.token_text(*id);
        let token_strs: Option<Vec<_>> = request
            .return_token_strs
            .then(|| tokens.iter().map(strings).collect());
        let answer = json!({
            "count": tokens.len(),
            "max_model_len": job.app.max_model_len(),
            "tokens": tokens,
            "token_strs": token_strs,
        });
        Ok(answer.to_string().into_bytes())
    })
    .await?;
    Ok(json(answer))
}

/// Token ids of a text of any length, limited only by the size of the body.
pub(super) fn encoded(job: &Job<'_>, input: &TokenizeInput) -> Result<Vec<u32>, ApiError> {
    match input {
        TokenizeInput::Text {
            text,
            add_special_tokens,
        } => job.encode("prompt", text, *add_special_tokens, u32::MAX),
        TokenizeInput::Messages {
            messages,
            add_generation_prompt,
            continue_final,
            tools,
            template,
            template_kwargs,
        } => {
            check_template(job, template.as_deref())?;
            let tools = tools.for_template();
            let chat = Conversation {
                add_generation_prompt: *add_generation_prompt,
                tools: tools.as_ref(),
                continue_final: *continue_final,
                template: template.as_deref(),
                template_kwargs: Some(template_kwargs),
                ..Conversation::of(messages)
            };
            Ok(job.encode_chat(&chat, u32::MAX)?.ids)
        }
    }
}

pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let body = app.read_body(request).await?;
    let answer = work_on(&app, body, |job| {
        let DetokenizeRequest { model, tokens } = DetokenizeRequest::parse(job.body)?;
        job.app.check_model(model.as_deref())?;
        let size = job.text.tokenizer.vocab_size();
        if let Some(token) = tokens.iter().find(|token| **token as usize >= size) {
            let message = format!("tokens holds id {token}; the tokenizer has {size} tokens.");
            return Err(ApiError::invalid("tokens", message));
        }
        let prompt = job.text.tokenizer.decode(&tokens, false);
        Ok(json!({ "prompt": prompt }).to_string().into_bytes())
    })
    .await?;
    Ok(json(answer))
}

/// `GET /tokenizer_info`, with the names of `tokenizer_config.json`.
pub(crate) async fn info(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    let text = app.text()?;
    let role = |name: &str| text.special_tokens.get(name);
    let answer = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": role("bos_token"),
        "eos_token": role("eos_token"),
        "unk_token": role("unk_token"),
        "pad_token": role("pad_token"),
        "vocab_size": text.tokenizer.vocab_size(),
        "model_max_length": app.max_model_len(),
        "chat_template": text.template.as_ref().map(ChatTemplate::source),
    });
    Ok(json(answer.to_string().into_bytes()))
}
