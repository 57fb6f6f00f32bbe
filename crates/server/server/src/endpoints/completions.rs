//! `POST /v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use penstock_api_types::{ApiError, Common, CompletionRequest, Prompt};
use penstock_http::request_id;

use super::completions_render::{CompletionRender, ShownPrompt, Style};
use crate::admission::AdmissionPermit;
use crate::app::App;
use crate::jobs::{Job, work_on};
use crate::lengths::truncate;
use crate::request_meta::RequestMeta;
use crate::stream;
use crate::submit::{EndpointParams, submit};
use penstock_api_http::Failure;

/// Default `max_tokens` of this endpoint, as in OpenAI and vLLM.
const DEFAULT_MAX_TOKENS: u32 = 16;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let arrival = RequestMeta::of(&request);
    let request_id = request_id(&request);
    let body = app.read_body(request).await?;
    let AdmittedRequest {
        common,
        style,
        prompts,
        shown,
        permit,
    } = work_on(&app, body, prepare).await?;
    let created = arrival.created(&common);
    let params = EndpointParams {
        default_max_tokens: Some(DEFAULT_MAX_TOKENS),
        logprobs: style.logprobs,
        reading: None,
        prompt_logprobs: style.scored_prompt(),
        arrival,
    };
    let choices = submit(&app, &common, &params, prompts, permit).await?;
    let identity = app.identity("cmpl", &request_id, common.model, created);
    let render = CompletionRender::new(
        identity,
        app.text()?.tokenizer.clone(),
        style,
        shown,
        common.n,
    );
    Ok(stream::answer(
        choices,
        render,
        common.stream.then_some(common.stream_options),
    )
    .await?)
}

/// An admitted request.
struct AdmittedRequest {
    common: Common,
    style: Style,
    prompts: Vec<Vec<u32>>,
    /// For each choice, the parts of its prompt that the response contains.
    shown: Vec<ShownPrompt>,
    permit: AdmissionPermit,
}

fn prepare(job: &Job<'_>) -> Result<AdmittedRequest, ApiError> {
    let request = CompletionRequest::parse(job.body)?;
    job.app.check_model(request.common.model.as_deref())?;
    let permit = job
        .app
        .admit(request.prompts.len().saturating_mul(request.common.n))?;
    let style = Style {
        echo: request.echo,
        logprobs: request.logprobs,
        prompt_logprobs: request.prompt_logprobs,
        tokens_as_ids: request.tokens_as_ids,
        token_ids: request.common.return_token_ids,
        skip_special: request.common.skip_special_tokens,
    };
    let (mut prompts, mut shown) = (Vec::new(), Vec::new());
    for prompt in request.prompts {
        let (mut tokens, written) = match prompt {
            Prompt::Tokens(tokens) => (tokens, None),
            Prompt::Text(written) => {
                let add_special = request.add_special_tokens;
                let length = request.common.prompt_limit(permit.limits.max_model_len);
                let tokens = job.encode("prompt", &written, add_special, length)?;
                (tokens, Some(written))
            }
        };
        let whole = tokens.len();
        let window = permit.limits.max_model_len;
        truncate(&mut tokens, request.common.truncation, window);
        let written = written.filter(|_| tokens.len() == whole);
        let prompt = shown_prompt(job, style, &tokens, written);
        shown.extend(std::iter::repeat_n(prompt, request.common.n));
        prompts.push(tokens);
    }
    Ok(AdmittedRequest {
        common: request.common,
        style,
        prompts,
        shown,
        permit,
    })
}

fn shown_prompt(
    job: &Job<'_>,
    style: Style,
    tokens: &[u32],
    written: Option<String>,
) -> ShownPrompt {
    let echoed = || written.unwrap_or_else(|| job.text.tokenizer.decode(tokens, true));
    ShownPrompt {
        text: if style.echo {
            echoed().into()
        } else {
            Arc::default()
        },
        tokens: if style.needs_prompt() {
            tokens.into()
        } else {
            Arc::default()
        },
    }
}
