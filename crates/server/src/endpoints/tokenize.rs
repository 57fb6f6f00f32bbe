//! `POST /tokenize` and `POST /detokenize`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_http::read_body;
use penstock_openai::ApiError;
use penstock_openai::{DetokenizeRequest, TokenizeInput, TokenizeRequest};
use penstock_text::TextModel;
use serde_json::json;

use super::{on_text, text_error};
use crate::app::App;
use crate::failure::{self, Failure};

pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let body = read_body(request, app.config.max_body_bytes).await?;
    let TokenizeRequest {
        model,
        input,
        return_token_strs,
    } = TokenizeRequest::parse(&body)?;
    app.check_model(model.as_deref())?;
    let max_model_len = app
        .limits()
        .map(|limits| limits.max_model_len)
        .or(app.config.max_model_len);
    let answer = on_text(&app, body.len(), move |text| {
        let tokens = encoded(text, &input)?;
        let strings = |id: &u32| text.tokenizer.token_text(*id);
        let token_strs: Option<Vec<_>> =
            return_token_strs.then(|| tokens.iter().map(strings).collect());
        Ok(json!({
            "count": tokens.len(),
            "max_model_len": max_model_len,
            "tokens": tokens,
            "token_strs": token_strs,
        }))
    })
    .await?;
    Ok(failure::json(answer.to_string().into_bytes()))
}

pub(super) fn encoded(text: &TextModel, input: &TokenizeInput) -> Result<Vec<u32>, ApiError> {
    match input {
        TokenizeInput::Text {
            text: written,
            add_special_tokens,
        } => text
            .tokenizer
            .encode(written, *add_special_tokens)
            .map_err(|error| text_error("prompt", &error)),
        TokenizeInput::Messages {
            messages,
            add_generation_prompt,
            template_kwargs,
        } => text
            .encode_chat(messages, *add_generation_prompt, None, template_kwargs)
            .map_err(|error| text_error("messages", &error)),
    }
}

pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let body = read_body(request, app.config.max_body_bytes).await?;
    let DetokenizeRequest { model, tokens } = DetokenizeRequest::parse(&body)?;
    app.check_model(model.as_deref())?;
    let decode = move |text: &TextModel| {
        let size = text.tokenizer.vocab_size();
        if let Some(token) = tokens.iter().find(|token| **token as usize >= size) {
            let message = format!("tokens holds id {token}; the tokenizer has {size} tokens.");
            return Err(ApiError::invalid("tokens", message));
        }
        Ok(text.tokenizer.decode(&tokens, false))
    };
    let prompt = on_text(&app, body.len(), decode).await?;
    Ok(failure::json(
        json!({ "prompt": prompt }).to_string().into_bytes(),
    ))
}
