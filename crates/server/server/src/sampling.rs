//! Sampling parameters of a request, from its fields, the server's defaults and the model's end
//! tokens.

use penstock_api_types::{ApiError, Common, LogitRules};
use penstock_tokenizer::{TextError, TextModel};
use penstock_wire::SamplingParams;

use crate::admission::Limits;
use crate::app::App;

/// Parameters shared by all choices of a request.
pub(crate) fn params(
    app: &App,
    common: &Common,
    seed: u64,
    logprobs: Option<u8>,
    limits: &Limits,
) -> Result<SamplingParams, ApiError> {
    let (defaults, rules) = (&app.config.generation_defaults, &common.logits);
    check_rules(rules, limits)?;
    check_texts(app, common)?;
    let repetition = rules.repetition_penalty.or(defaults.repetition_penalty);
    let banned = banned(app.text()?, &rules.bad_words)
        .map_err(|error| ApiError::invalid("bad_words", format!("bad_words: {error}.")))?;
    Ok(SamplingParams {
        temperature: common.temperature.or(defaults.temperature).unwrap_or(1.0),
        top_k: u32::try_from(common.top_k.or(defaults.top_k).unwrap_or(0)).unwrap_or(0),
        top_p: common.top_p.or(defaults.top_p).unwrap_or(1.0),
        min_p: rules.min_p.or(defaults.min_p).unwrap_or(0.0),
        seed,
        choice: 0,
        logprobs,
        repetition_penalty: repetition.unwrap_or(1.0),
        presence_penalty: rules.presence_penalty,
        frequency_penalty: rules.frequency_penalty,
        bias: rules.logit_bias.clone(),
        allowed: rules.allowed_token_ids.clone(),
        banned,
        suppressed: end_tokens(app, common),
        suppressed_until: 0,
    })
}

/// Tokens that end the output, masked until `min_tokens` and until the grammar may end.
fn end_tokens(app: &App, common: &Common) -> Vec<u32> {
    if common.min_tokens == 0 && common.grammar.is_none() {
        return Vec::new();
    }
    let mut tokens = common.stop_token_ids.clone();
    if let (false, Some(ready)) = (common.ignore_eos, app.engine.state().ready()) {
        tokens.extend(&ready.eos_token_ids);
    }
    tokens
}

/// Rejects rules that are text if the server has no tokenizer.
fn check_texts(app: &App, common: &Common) -> Result<(), ApiError> {
    if !common.stop.is_empty() {
        app.check_tokenizer("stop")?;
    }
    if !common.logits.bad_words.is_empty() {
        app.check_tokenizer("bad_words")?;
    }
    let grammar = common.grammar.as_ref();
    grammar.map_or(Ok(()), |grammar| app.check_tokenizer(grammar.field))
}

fn check_rules(rules: &LogitRules, limits: &Limits) -> Result<(), ApiError> {
    let biased: Vec<u32> = rules.logit_bias.iter().map(|b| b.0).collect();
    limits.check_tokens("logit_bias", &biased)?;
    limits.check_tokens("allowed_token_ids", &rules.allowed_token_ids)
}

/// Token sequences of bad words: at the start of a text, and after a space if that variant differs
/// and has the same number of tokens, as in vLLM.
fn banned(text: &TextModel, words: &[String]) -> Result<Vec<Vec<u32>>, TextError> {
    let mut runs: Vec<Vec<u32>> = Vec::new();
    for word in words {
        let word = word.trim_start();
        let plain = text.tokenizer.encode(word, false)?;
        let spaced = text.tokenizer.encode(&format!(" {word}"), false)?;
        if spaced.first() != plain.first() && spaced.len() == plain.len() {
            runs.push(spaced);
        }
        runs.push(plain);
    }
    runs.retain(|run| !run.is_empty());
    Ok(runs)
}
