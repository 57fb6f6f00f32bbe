//! `POST /v1/completions` and `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use http_body_util::BodyExt;
use penstock_openai::ApiError;
use penstock_openai::{ChatRequest, Common, CompletionRequest, MaxTokens, Prompt, Usage};
use penstock_wire::TokenRequest;
use tokio::sync::oneshot;

use super::app::{App, Departure, Failure, json};
use super::chunks::{Chunks, Endpoint, Identity, whole};
use super::pipe::{PipeReader, pipe};
use super::seat::{Answered, Seat, SeatKind, Stream};
use crate::batching::Ask;
use crate::faults::FaultKind;

/// `max_tokens` of completions that do not say, as OpenAI and vLLM have it.
const DEFAULT_MAX_TOKENS: u32 = 16;
/// Where the answers of other requests that do not say end by themselves.
const NATURAL_LENGTH: u32 = 128;

pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Response, Failure> {
    let request = CompletionRequest::parse(&body)?;
    let prompt = match request.prompts.as_slice() {
        [Prompt::Text(text)] => app.vocabulary.encode(text, request.add_special_tokens)?,
        [Prompt::Tokens(ids)] => ids.clone(),
        _ => return Err(not_modelled("prompt", "a list of more than one prompt").into()),
    };
    if request.echo || request.logprobs.is_some() {
        return Err(not_modelled("logprobs", "echo and log-probabilities").into());
    }
    answer(&app, Endpoint::Completions, request.common, prompt).await
}

pub(crate) async fn chat(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, Failure> {
    let request = ChatRequest::parse(&body)?;
    if request.logprobs.is_some() {
        return Err(not_modelled("logprobs", "log-probabilities").into());
    }
    let prompt = app.vocabulary.encode_chat(
        &request.messages,
        request.add_generation_prompt,
        &request.template_kwargs,
    )?;
    answer(&app, Endpoint::Chat, request.common, prompt).await
}

fn not_modelled(field: &'static str, what: &str) -> ApiError {
    let mut error = ApiError::invalid(
        field,
        format!("The simulated engine does not model {what}."),
    );
    error.code = Some("unsupported_parameter");
    error
}

async fn answer(
    app: &Arc<App>,
    endpoint: Endpoint,
    common: Common,
    prompt: Vec<u32>,
) -> Result<Response, Failure> {
    app.check_model(common.model.as_deref())?;
    if !common.stop.is_empty() {
        return Err(not_modelled("stop", "stop strings").into());
    }
    let number = app.number();
    let fault = app.faults.pick(number);
    refuse_on_purpose(fault)?;
    let usage = Usage {
        prompt_tokens: prompt.len() as u32,
        ..Usage::default()
    };
    let ask = ask(app, endpoint, &common, prompt, fault)?;
    let call = Call {
        app: app.clone(),
        endpoint,
        number,
        fault,
        usage,
        identity: app.identity(endpoint, number),
    };
    if common.stream {
        call.stream(&common, ask).await
    } else {
        call.whole(ask).await
    }
}

fn refuse_on_purpose(fault: Option<FaultKind>) -> Result<(), ApiError> {
    match fault {
        Some(FaultKind::Refuse) => Err(ApiError::queue_full(1)),
        Some(FaultKind::Status(status)) => {
            let mut error = ApiError::internal("A fault on purpose.");
            error.status = status;
            Err(error)
        }
        _ => Ok(()),
    }
}

/// What the engine is asked for.
fn ask(
    app: &App,
    endpoint: Endpoint,
    common: &Common,
    prompt: Vec<u32>,
    fault: Option<FaultKind>,
) -> Result<Ask, ApiError> {
    let context = app.profile.max_model_len;
    let asked = match (common.max_tokens, endpoint) {
        (MaxTokens::Exactly(count), _) => Some(count),
        (MaxTokens::Unset, Endpoint::Completions) => Some(DEFAULT_MAX_TOKENS),
        _ => None,
    };
    let room = (context as usize).saturating_sub(prompt.len()) as u32;
    if prompt.is_empty() {
        return Err(ApiError::invalid("prompt", "prompt must not be empty."));
    }
    if room == 0 || asked.is_some_and(|asked| asked > room) {
        return Err(ApiError::context_length(context, prompt.len(), asked));
    }
    let open_ended = asked.is_none() && !app.draws_lengths;
    Ok(Ask {
        natural: open_ended.then_some(NATURAL_LENGTH),
        early_stop: match fault {
            Some(FaultKind::EarlyStop(count)) => Some(count),
            _ => None,
        },
        request: TokenRequest {
            prompt,
            max_tokens: asked.unwrap_or(room).max(1),
            min_tokens: common.min_tokens,
            seed: common.seed.unwrap_or_default() as u64,
            ignore_eos: common.ignore_eos,
            stop_token_ids: common.stop_token_ids.clone(),
            cache_salt: common.cache_salt.clone().unwrap_or_default().into_bytes(),
            ..TokenRequest::default()
        },
    })
}

/// A request on its way.
struct Call {
    app: Arc<App>,
    endpoint: Endpoint,
    number: u64,
    fault: Option<FaultKind>,
    usage: Usage,
    identity: Identity,
}

impl Call {
    async fn stream(self, common: &Common, ask: Ask) -> Result<Response, Failure> {
        let (opening, opened) = oneshot::channel();
        let (writer, reader) = pipe();
        let stream = Stream {
            chunks: Chunks::new(self.endpoint, &self.identity),
            options: common.stream_options,
            pipe: Some(writer),
            opening: Some(opening),
        };
        let departure = self.submit(ask, SeatKind::Stream(Box::new(stream)));
        opened.await.map_err(|_| gone())??;
        self.delay().await;
        Ok(event_stream(reader.guarded(departure)))
    }

    async fn whole(self, ask: Ask) -> Result<Response, Failure> {
        let (answered, answer) = oneshot::channel();
        let kind = SeatKind::Whole {
            text: String::new(),
            answered: Some(answered),
        };
        let departure = self.submit(ask, kind);
        let answer = answer.await;
        drop(departure);
        let Ok(answer) = answer else {
            return Ok(broken());
        };
        let Answered {
            text,
            finish,
            usage,
        } = answer?;
        self.delay().await;
        Ok(json(whole(
            self.endpoint,
            &self.identity,
            &text,
            finish,
            usage,
        )))
    }

    fn submit(&self, ask: Ask, kind: SeatKind) -> Departure {
        let seat = Seat {
            usage: self.usage,
            fault: self.fault,
            kind,
        };
        self.app.submit(self.number, ask, seat)
    }

    async fn delay(&self) {
        if let Some(FaultKind::SlowHeaders(delay)) = self.fault {
            tokio::time::sleep(delay).await;
        }
    }
}

fn gone() -> ApiError {
    ApiError::unavailable("The engine is shutting down.", 5)
}

fn event_stream(reader: PipeReader<Departure>) -> Response {
    let mut response = Response::new(Body::new(reader));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// A response whose connection breaks before its body.
fn broken() -> Response {
    let (writer, reader) = pipe();
    writer.cut();
    Response::new(Body::new(reader.guarded(()).boxed()))
}
