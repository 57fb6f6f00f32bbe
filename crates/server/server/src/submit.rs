//! Submits validated parameters and token ids as engine requests.

use std::iter::repeat_n;
use std::sync::Arc;

use penstock_api_types::{ApiError, Common, MaxTokens, Origin};
use penstock_tokenizer::Detokenizer;
use penstock_wire::{SamplingParams, TokenRequest};

use crate::admission::{AdmissionPermit, Limits, Slot};
use crate::app::App;
use crate::choice::{Choice, TextRules};
use crate::choices::ChoiceStreams;
use crate::marks::Marks;
use crate::metrics::{RequestTimer, span};
use crate::reading::{Reader, Reading};
use crate::request_meta::RequestMeta;
use crate::{engine, lengths, resume, sampling, wanted_grammar};

/// Upper bound on the log-probabilities of prompts in one response.
const MAX_PROMPT_SCORES: usize = 1 << 22;

/// Endpoint-specific parameters.
pub(crate) struct EndpointParams {
    /// Default `max_tokens`; `None`: the remaining context.
    pub(crate) default_max_tokens: Option<u32>,
    pub(crate) logprobs: Option<u8>,
    pub(crate) prompt_logprobs: Option<u8>,
    /// `None`: the outputs are plain text.
    pub(crate) reading: Option<Reading>,
    pub(crate) arrival: RequestMeta,
}

/// Submits `n` engine requests per prompt, each with a slot of the permit. All are validated before
/// the first is sent.
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
    if let Some(most) = params.prompt_logprobs {
        // Completions have them in each choice, chat once.
        let copies = params.reading.as_ref().map_or(common.n, |_| 1);
        check_scores(prompts.iter().map(Vec::len).sum(), copies, most)?;
    }
    let origin = resume::origin(app, common, &params.arrival);
    let sampling = sampling::params(app, common, origin.seed, params.logprobs, &limits)?;
    let grammar = wanted_grammar::checked(app, common).await?;
    let single = prompts.len() * common.n == 1 && params.prompt_logprobs.is_none();
    let mut requests = Vec::with_capacity(prompts.len() * common.n);
    for prompt in prompts {
        let mut first = token_request(common, params, &limits, prompt, sampling.clone())?;
        first.grammar = grammar.clone();
        resume::append(&mut first, common, &limits, single)?;
        // The last choice takes the prompt; the others clone it.
        for (choice, mut request) in repeat_n(first, common.n).enumerate() {
            request.sampling.choice = choice as u32;
            // The log-probabilities of a prompt are the same for all its choices. In a stream, each
            // choice begins on its own and needs them.
            if choice > 0 && !common.stream {
                request.prompt_logprobs = None;
                request.skip_prefix_cache = false;
            }
            // Only the first choice's request may expire in the queue: once it has started, the
            // HTTP response has begun and cannot become an error.
            request.expires = requests.is_empty();
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
    let marked = params.arrival.marked && single;
    choices.marks = marked.then(|| Marks::new(origin, common.resume.is_some()));
    Ok(choices)
}

/// Rejects prompts of `tokens` tokens in all if a response with `copies` of their
/// log-probabilities, with `most` alternatives for each token, would be too large.
fn check_scores(tokens: usize, copies: usize, most: u8) -> Result<(), ApiError> {
    let count = tokens.saturating_mul(copies * (usize::from(most) + 1));
    if count > MAX_PROMPT_SCORES {
        return Err(ApiError::bad_request(format!(
            "The response would have {count} log-probabilities of prompts, and may have \
             {MAX_PROMPT_SCORES}: ask for fewer alternatives, choices or prompts."
        )));
    }
    Ok(())
}

fn token_request(
    common: &Common,
    params: &EndpointParams,
    limits: &Limits,
    prompt: Vec<u32>,
    mut sampling: SamplingParams,
) -> Result<TokenRequest, ApiError> {
    lengths::check_prompt(&prompt, limits)?;
    let max_tokens = lengths::max_tokens(common, params.default_max_tokens, limits, prompt.len())?;
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
        // Prompt log-probabilities need the logits of every position; cached positions have none.
        skip_prefix_cache: params.prompt_logprobs.is_some(),
        stop_token_ids: common.stop_token_ids.clone(),
        cache_salt: params.arrival.salt(common.cache_salt.as_deref()),
        pool: false,
        expires: false,
        grammar: None,
        adapter: 0,
        priority: common.priority,
        sampling,
    })
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
    // The usage counts a prompt's tokens once for all its choices.
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
    let operation = match reader {
        Some(_) => "chat",
        None => "text_completion",
    };
    let model = app.model_name(common.model.as_deref());
    let span = span::open(&params.arrival, operation, model, common.n, &request);
    let events = engine::submit(app, request, slot)?;
    if let (Some(caller), false) = (&params.arrival.caller, shared) {
        caller.usage.spend(prompt_tokens);
    }
    let metrics = app.metrics.clone();
    let timer = RequestTimer::new(metrics, params.arrival.clone(), prompt_tokens, max_tokens);
    let timer = timer.traced(span);
    Ok(Choice::new(
        events,
        detokenizer,
        rules,
        reader,
        timer,
        if shared { 0 } else { prompt_tokens },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_with_too_many_scores_are_refused() {
        assert!(check_scores(131_072, 1, 20).is_ok(), "a long context");
        assert!(check_scores(32_768, 128, 0).is_ok(), "as many as may be");
        for (tokens, copies, most) in [(32_769, 128, 0), (131_072, 2, 20), (usize::MAX, 128, 20)] {
            assert!(check_scores(tokens, copies, most).is_err());
        }
    }
}
