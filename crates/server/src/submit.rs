//! From validated parameters and token ids to requests at the engine.

use std::sync::Arc;

use penstock_engine_client::SubmitError;
use penstock_openai::{ApiError, Common, MaxTokens, Origin};
use penstock_text::Detokenizer;
use penstock_wire::{Grammar, SamplingParams, TokenRequest};

use crate::admission::{AdmissionPermit, Limits, Slot};
use crate::app::App;
use crate::arrival::Arrival;
use crate::choices::{Choice, ChoiceStreams, TextRules};
use crate::marks::Marks;
use crate::metrics::RequestTimer;
use crate::reading::{Reader, Reading};
use crate::sampling;

/// What an endpoint adds to the common parameters.
pub(crate) struct EndpointParams {
    /// `max_tokens` of requests without it; `None` for what fits.
    pub(crate) default_max_tokens: Option<u32>,
    pub(crate) logprobs: Option<u8>,
    pub(crate) prompt_logprobs: Option<u8>,
    /// `None`: the outputs are plain text.
    pub(crate) reading: Option<Reading>,
    pub(crate) arrival: Arrival,
}

/// Submits `n` engine requests for each prompt; the permit has a slot for each. All are checked
/// before the first is sent.
pub(crate) async fn submit(
    app: &Arc<App>,
    common: &Common,
    params: &EndpointParams,
    prompts: Vec<Vec<u32>>,
    permit: AdmissionPermit,
) -> Result<ChoiceStreams, ApiError> {
    let limits = permit.limits;
    if limits.pooler.only {
        return Err(ApiError::unsupported_endpoint(
            "The model has no output head and writes no text: it is served at /v1/embeddings, \
             /v1/score and /v1/rerank",
        ));
    }
    limits.check_tokens("stop_token_ids", &common.stop_token_ids)?;
    let origin = origin(app, common, &params.arrival);
    let sampling = sampling::params(app, common, origin.seed, params.logprobs, &limits)?;
    let grammar = grammar(app, common).await?;
    let single = prompts.len() * common.n == 1 && params.prompt_logprobs.is_none();
    let mut requests = Vec::with_capacity(prompts.len() * common.n);
    for prompt in prompts {
        let mut first = token_request(common, params, &limits, prompt, sampling.clone())?;
        first.grammar = grammar.clone();
        resume(&mut first, common, &limits, single)?;
        for choice in 0..common.n as u32 {
            let mut request = first.clone();
            request.sampling.choice = choice;
            requests.push(request);
        }
    }
    let choices = requests
        .into_iter()
        .zip(permit.slots)
        .map(|(request, slot)| start(app, common, params, request, slot, origin))
        .collect::<Result<_, _>>()?;
    let tiers_shown = limits.kv_tiers.any() || common.return_cached_tokens_by_tier;
    let tiers = tiers_shown.then_some(limits.kv_tiers);
    let mut choices = ChoiceStreams::new(choices, tiers);
    if let Some(resume) = &common.resume {
        choices.replay(&resume.steps, params.logprobs.is_some())?;
    }
    if params.arrival.marked && single {
        choices.marks = Some(Marks::new(origin, common.resume.is_some()));
    }
    Ok(choices)
}

/// What is drawn for the request, or was where it goes on from.
fn origin(app: &Arc<App>, common: &Common, arrival: &Arrival) -> Origin {
    if let Some(resume) = &common.resume {
        return resume.origin;
    }
    let seed = common.seed.map(i64::cast_unsigned);
    let seed = seed.or(app.config.generation_defaults.seed);
    Origin {
        created: arrival.created(common),
        seed: seed.unwrap_or_else(|| app.guard.ids.next()),
        calls: app.guard.ids.next(),
    }
}

/// Appends the output so far of a stream that broke off.
fn resume(
    request: &mut TokenRequest,
    common: &Common,
    limits: &Limits,
    single: bool,
) -> Result<(), ApiError> {
    let Some(resume) = &common.resume else {
        return Ok(());
    };
    let tokens = resume.tokens();
    let refused = |what: &str| Err(ApiError::invalid("resume", format!("resume: {what}.")));
    if !single {
        return refused("it is for one prompt without prompt_logprobs");
    }
    if tokens.len() >= request.max_tokens as usize {
        return refused("it has all tokens already");
    }
    limits.check_tokens("resume", &tokens)?;
    request.prompt.extend_from_slice(&tokens);
    request.resumed = tokens.len() as u32;
    Ok(())
}

/// Keeps the last tokens of a prompt as the request asks.
pub(crate) fn truncate(prompt: &mut Vec<u32>, common: &Common, limits: Limits) {
    let most = match common.truncate_prompt {
        None => return,
        Some(0) => limits.max_model_len.saturating_sub(1) as usize,
        Some(most) => most,
    };
    prompt.drain(..prompt.len().saturating_sub(most));
}

/// The grammar of the request, which compiles.
async fn grammar(app: &Arc<App>, common: &Common) -> Result<Option<Arc<Grammar>>, ApiError> {
    let Some(wanted) = common.grammar.clone() else {
        return Ok(None);
    };
    let ends = app.engine.state().ready().map(|r| r.eos_token_ids.len());
    if ends == Some(0) && common.stop_token_ids.is_empty() {
        let message = format!(
            "{}: no token ends the output: send stop_token_ids.",
            wanted.field
        );
        return Err(ApiError::invalid(wanted.field, message));
    }
    let app = Arc::clone(app);
    let checked = tokio::task::spawn_blocking(move || {
        app.grammars.check(&app.text()?.tokenizer, &wanted)?;
        Ok(Arc::new(wanted.grammar))
    });
    let failed = |_| Err(ApiError::internal("Compiling the grammar failed."));
    checked.await.unwrap_or_else(failed).map(Some)
}

fn token_request(
    common: &Common,
    params: &EndpointParams,
    limits: &Limits,
    prompt: Vec<u32>,
    mut sampling: SamplingParams,
) -> Result<TokenRequest, ApiError> {
    check_prompt(&prompt, limits)?;
    let max_tokens = resolve_max_tokens(common, params, limits, prompt.len())?;
    let min_tokens = common.min_tokens.min(max_tokens);
    sampling.suppressed_until = match min_tokens {
        0 => 0,
        min_tokens => prompt.len() as u32 + min_tokens,
    };
    Ok(TokenRequest {
        prompt,
        resumed: 0,
        max_tokens,
        min_tokens,
        prompt_logprobs: params.prompt_logprobs,
        ignore_eos: common.ignore_eos,
        // A cached position has no logits to take probabilities from.
        skip_prefix_cache: params.prompt_logprobs.is_some(),
        stop_token_ids: common.stop_token_ids.clone(),
        cache_salt: cache_salt(common.cache_salt.as_deref(), &params.arrival),
        pool: false,
        grammar: None,
        adapter: 0,
        priority: common.priority,
        sampling,
    })
}

pub(crate) fn check_prompt(prompt: &[u32], limits: &Limits) -> Result<(), ApiError> {
    if prompt.is_empty() {
        return Err(ApiError::invalid("prompt", "The prompt has no tokens."));
    }
    limits.check_tokens("prompt", prompt)
}

/// The salt of the request, behind that of its key.
pub(crate) fn cache_salt(asked: Option<&str>, arrival: &Arrival) -> Vec<u8> {
    let caller = arrival.caller.as_ref();
    let own = caller.and_then(|caller| caller.salt.as_deref());
    let asked = asked.unwrap_or_default();
    match own {
        None => asked.as_bytes().to_vec(),
        Some(own) => blake3::derive_key(
            "penstock 2026-11-22 cache salt of an API key",
            own.as_bytes(),
        )
        .iter()
        .chain(asked.as_bytes())
        .copied()
        .collect(),
    }
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
    origin: Origin,
) -> Result<Choice, ApiError> {
    let max_tokens = request.max_tokens;
    // The choices of a prompt share its tokens in the usage.
    let shared = request.sampling.choice > 0;
    let prompt_tokens = request.prompt.len() as u32 - request.resumed;
    let tokenizer = app.text()?.tokenizer.clone();
    let prompt = &request.prompt[..prompt_tokens as usize];
    let mut detokenizer = Detokenizer::new(tokenizer, common.skip_special_tokens, prompt);
    let reading = params.reading.clone();
    let reader = reading.map(|reading| {
        detokenizer.keep(reading.kept.clone());
        let choice = u64::from(request.sampling.choice);
        Reader::new(reading, origin.calls.wrapping_add(choice << 16))
    });
    let rules = TextRules {
        stop: common.stop.clone(),
        stop_token_ids: common.stop_token_ids.clone(),
        include_stop: common.include_stop,
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
    if let (Some(caller), false) = (&params.arrival.caller, shared) {
        caller.usage.spend(prompt_tokens);
    }
    let metrics = app.metrics.clone();
    let timer = RequestTimer::new(metrics, params.arrival.clone(), prompt_tokens, max_tokens);
    Ok(Choice::new(
        events,
        detokenizer,
        rules,
        reader,
        timer,
        if shared { 0 } else { prompt_tokens },
    ))
}
