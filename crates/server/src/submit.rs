//! From validated parameters and token ids to requests at the engine.

use std::time::Instant;

use penstock_engine_client::SubmitError;
use penstock_openai::ApiError;
use penstock_openai::{Common, MaxTokens};
use penstock_wire::TokenRequest;

use crate::admission::Seat;
use crate::app::{App, Limits};
use crate::choices::Choices;
use crate::generation::{Generation, TextRules};
use crate::metrics::Timeline;

/// What an endpoint adds to the common parameters.
pub(crate) struct Wanted {
    /// `max_tokens` of requests that do not say; `None` for what fits.
    pub(crate) default_max_tokens: Option<u32>,
    pub(crate) logprobs: Option<u8>,
    pub(crate) prompt_logprobs: Option<u8>,
    /// When the client's request came in.
    pub(crate) arrived: Instant,
}

/// Submits one engine request for each prompt. All are checked before the first is sent.
pub(crate) fn submit(
    app: &App,
    common: &Common,
    wanted: &Wanted,
    prompts: Vec<Vec<u32>>,
    (seat, limits): (Seat, Limits),
) -> Result<Choices, ApiError> {
    check_stop_tokens(common, &limits)?;
    let seed = common.seed.map(i64::cast_unsigned);
    let seed = seed
        .or(app.config.generation_defaults.seed)
        .unwrap_or_else(|| app.ids.next());
    let requests = prompts
        .into_iter()
        .map(|prompt| token_request(app, common, wanted, &limits, prompt, seed));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let generations = requests
        .into_iter()
        .map(|request| start(app, common, wanted, request))
        .collect::<Result<_, _>>()?;
    let tiers_shown = limits.kv_tiers.any() || common.return_cached_tokens_by_tier;
    let tiers = tiers_shown.then_some(limits.kv_tiers);
    Ok(Choices::new(generations, tiers, seat))
}

fn token_request(
    app: &App,
    common: &Common,
    wanted: &Wanted,
    limits: &Limits,
    prompt: Vec<u32>,
    seed: u64,
) -> Result<TokenRequest, ApiError> {
    check_prompt(&prompt, limits)?;
    let max_tokens = resolve_max_tokens(common, wanted, limits, prompt.len())?;
    let defaults = &app.config.generation_defaults;
    Ok(TokenRequest {
        prompt,
        max_tokens,
        min_tokens: common.min_tokens.min(max_tokens),
        temperature: common.temperature.or(defaults.temperature).unwrap_or(1.0),
        top_k: common.top_k.or(defaults.top_k).unwrap_or(0).max(0),
        top_p: common.top_p.or(defaults.top_p).unwrap_or(1.0),
        seed,
        choice: 0,
        logprobs: wanted.logprobs,
        prompt_logprobs: wanted.prompt_logprobs,
        ignore_eos: common.ignore_eos,
        // A cached position has no logits to take probabilities from.
        skip_prefix_cache: wanted.prompt_logprobs.is_some(),
        stop_token_ids: common.stop_token_ids.clone(),
        cache_salt: common.cache_salt.clone().unwrap_or_default().into_bytes(),
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
    wanted: &Wanted,
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
        MaxTokens::Unset => Ok(wanted.default_max_tokens.unwrap_or(room).min(room)),
    }
}

fn start(
    app: &App,
    common: &Common,
    wanted: &Wanted,
    request: TokenRequest,
) -> Result<Generation, ApiError> {
    let tokenizer = &app.text()?.tokenizer;
    let rules = TextRules {
        stop: common.stop.clone(),
        stop_token_ids: common.stop_token_ids.clone(),
        min_tokens: request.min_tokens,
        skip_special_tokens: common.skip_special_tokens,
        discard_output: common.max_tokens == MaxTokens::Exactly(0),
    };
    let prompt = request.prompt.clone();
    let max_tokens = request.max_tokens;
    let events = app.engine.submit(request).map_err(|error| match error {
        SubmitError::NotReady { .. } => app.engine_down(),
        SubmitError::Invalid(error) => {
            ApiError::bad_request(format!("The request does not fit the wire: {error}."))
        }
    })?;
    let timeline = Timeline::new(
        app.metrics.clone(),
        wanted.arrived,
        prompt.len() as u32,
        max_tokens,
    );
    Ok(Generation::new(events, tokenizer, &prompt, rules, timeline))
}
