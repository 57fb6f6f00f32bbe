//! From validated parameters and token ids to requests at the engine.

use std::time::Instant;

use penstock_engine_client::SubmitError;
use penstock_openai::{ApiError, Common, MaxTokens};
use penstock_text::Detokenizer;
use penstock_wire::{SamplingParams, TokenRequest};

use crate::admission::{AdmissionPermit, Limits, Slot};
use crate::app::App;
use crate::choices::{Choice, ChoiceStreams, TextRules};
use crate::metrics::RequestTimer;

/// What an endpoint adds to the common parameters.
pub(crate) struct EndpointParams {
    /// `max_tokens` of requests without it; `None` for what fits.
    pub(crate) default_max_tokens: Option<u32>,
    pub(crate) logprobs: Option<u8>,
    pub(crate) prompt_logprobs: Option<u8>,
    /// When the client's request came in.
    pub(crate) arrived: Instant,
}

/// Submits one engine request for each prompt, for which there is a slot each. All are checked
/// before the first is sent.
pub(crate) fn submit(
    app: &App,
    common: &Common,
    params: &EndpointParams,
    prompts: Vec<Vec<u32>>,
    permit: AdmissionPermit,
) -> Result<ChoiceStreams, ApiError> {
    let limits = permit.limits;
    check_stop_tokens(common, &limits)?;
    let seed = common.seed.map(i64::cast_unsigned);
    let seed = seed
        .or(app.config.generation_defaults.seed)
        .unwrap_or_else(|| app.ids.next());
    let requests = prompts
        .into_iter()
        .map(|prompt| token_request(app, common, params, &limits, prompt, seed));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let choices = requests
        .into_iter()
        .zip(permit.slots)
        .map(|(request, slot)| start(app, common, params, request, slot))
        .collect::<Result<_, _>>()?;
    let tiers_shown = limits.kv_tiers.any() || common.return_cached_tokens_by_tier;
    let tiers = tiers_shown.then_some(limits.kv_tiers);
    Ok(ChoiceStreams::new(choices, tiers))
}

fn token_request(
    app: &App,
    common: &Common,
    params: &EndpointParams,
    limits: &Limits,
    prompt: Vec<u32>,
    seed: u64,
) -> Result<TokenRequest, ApiError> {
    check_prompt(&prompt, limits)?;
    let max_tokens = resolve_max_tokens(common, params, limits, prompt.len())?;
    let defaults = &app.config.generation_defaults;
    Ok(TokenRequest {
        prompt,
        max_tokens,
        min_tokens: common.min_tokens.min(max_tokens),
        prompt_logprobs: params.prompt_logprobs,
        ignore_eos: common.ignore_eos,
        // A cached position has no logits to take probabilities from.
        skip_prefix_cache: params.prompt_logprobs.is_some(),
        stop_token_ids: common.stop_token_ids.clone(),
        cache_salt: common.cache_salt.clone().unwrap_or_default().into_bytes(),
        grammar: 0,
        adapter: 0,
        sampling: SamplingParams {
            temperature: common.temperature.or(defaults.temperature).unwrap_or(1.0),
            top_k: u32::try_from(common.top_k.or(defaults.top_k).unwrap_or(0)).unwrap_or(0),
            top_p: common.top_p.or(defaults.top_p).unwrap_or(1.0),
            seed,
            choice: 0,
            logprobs: params.logprobs,
        },
    })
}

pub(crate) fn check_prompt(prompt: &[u32], limits: &Limits) -> Result<(), ApiError> {
    if prompt.is_empty() {
        return Err(ApiError::invalid("prompt", "The prompt has no tokens."));
    }
    let known = |token: &&u32| **token < limits.vocab_size;
    match prompt.iter().find(|token| !known(token)) {
        Some(token) => Err(unknown_token("prompt", *token, limits)),
        None => Ok(()),
    }
}

fn check_stop_tokens(common: &Common, limits: &Limits) -> Result<(), ApiError> {
    match common
        .stop_token_ids
        .iter()
        .find(|token| **token >= limits.vocab_size)
    {
        Some(token) => Err(unknown_token("stop_token_ids", *token, limits)),
        None => Ok(()),
    }
}

fn unknown_token(field: &'static str, token: u32, limits: &Limits) -> ApiError {
    let size = limits.vocab_size;
    ApiError::invalid(
        field,
        format!("{field} holds token id {token}; the vocabulary has {size} tokens."),
    )
}

/// At least 1, also when no output is wanted: the engine cannot make none.
fn resolve_max_tokens(
    common: &Common,
    params: &EndpointParams,
    limits: &Limits,
    prompt_tokens: usize,
) -> Result<u32, ApiError> {
    let window = limits.max_model_len;
    let room = u32::try_from(prompt_tokens)
        .ok()
        .and_then(|n| window.checked_sub(n))
        .filter(|room| *room > 0);
    let room = room.ok_or_else(|| ApiError::context_length(window, prompt_tokens, None))?;
    match common.max_tokens {
        MaxTokens::Exactly(asked) if asked > room => {
            Err(ApiError::context_length(window, prompt_tokens, Some(asked)))
        }
        MaxTokens::Exactly(asked) => Ok(asked.max(1)),
        MaxTokens::Remaining => Ok(room),
        MaxTokens::Unset => Ok(params.default_max_tokens.unwrap_or(room).min(room)),
    }
}

fn start(
    app: &App,
    common: &Common,
    params: &EndpointParams,
    request: TokenRequest,
    slot: Slot,
) -> Result<Choice, ApiError> {
    let (prompt_tokens, max_tokens) = (request.prompt.len() as u32, request.max_tokens);
    let tokenizer = app.text()?.tokenizer.clone();
    let detokenizer = Detokenizer::new(tokenizer, common.skip_special_tokens, &request.prompt);
    let rules = TextRules {
        stop: common.stop.clone(),
        stop_token_ids: common.stop_token_ids.clone(),
        min_tokens: request.min_tokens,
        discard_output: common.max_tokens == MaxTokens::Exactly(0),
    };
    let submitted = app.engine.submit_holding(request, slot);
    let events = submitted.map_err(|error| match error {
        SubmitError::NotReady { .. } => app.engine_down(),
        SubmitError::Invalid(error) => {
            ApiError::bad_request(format!("The request does not fit the wire: {error}."))
        }
    })?;
    let metrics = app.metrics.clone();
    let timer = RequestTimer::new(metrics, params.arrived, prompt_tokens, max_tokens);
    Ok(Choice::new(
        events,
        detokenizer,
        rules,
        timer,
        prompt_tokens,
    ))
}
