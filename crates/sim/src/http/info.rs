//! What a replica says about itself, and its tokenizer.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use penstock_openai::ApiError;
use penstock_openai::{DetokenizeRequest, Model, ModelList, TokenizeInput, TokenizeRequest};
use serde_json::json;

use super::app::{App, Failure, json, unix_now};

pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    let model = Model {
        id: &app.model,
        object: "model",
        created: unix_now(),
        owned_by: "penstock-sim",
        root: &app.model,
        max_model_len: Some(app.profile.max_model_len),
    };
    let list = ModelList {
        object: "list",
        data: vec![model],
    };
    json(serde_json::to_vec(&list).unwrap_or_default())
}

pub(crate) async fn health() -> Response {
    json(b"{\"status\":\"ok\"}".to_vec())
}

pub(crate) async fn version(State(app): State<Arc<App>>) -> Response {
    json(json!({ "version": app.version }).to_string().into_bytes())
}

pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let page = app.counters.page(&app.model, app.profile.block_size);
    ([(header::CONTENT_TYPE, kind)], page).into_response()
}

pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Response, Failure> {
    let request = TokenizeRequest::parse(&body)?;
    app.check_model(request.model.as_deref())?;
    let tokens = match &request.input {
        TokenizeInput::Text {
            text,
            add_special_tokens,
        } => app.vocabulary.encode(text, *add_special_tokens)?,
        TokenizeInput::Messages {
            messages,
            add_generation_prompt,
            template_kwargs,
        } => app
            .vocabulary
            .encode_chat(messages, *add_generation_prompt, template_kwargs)?,
    };
    let strings = |id: &u32| app.vocabulary.token_text(*id);
    let token_strs: Option<Vec<String>> = request
        .return_token_strs
        .then(|| tokens.iter().map(strings).collect());
    let answer = json!({
        "count": tokens.len(),
        "max_model_len": app.profile.max_model_len,
        "tokens": tokens,
        "token_strs": token_strs,
    });
    Ok(json(answer.to_string().into_bytes()))
}

pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Response, Failure> {
    let request = DetokenizeRequest::parse(&body)?;
    app.check_model(request.model.as_deref())?;
    let size = app.vocabulary.size();
    if let Some(token) = request.tokens.iter().find(|token| **token >= size) {
        let message = format!("tokens holds id {token}; the tokenizer has {size} tokens.");
        return Err(ApiError::invalid("tokens", message).into());
    }
    let prompt = app.vocabulary.decode(&request.tokens);
    Ok(json(json!({ "prompt": prompt }).to_string().into_bytes()))
}
