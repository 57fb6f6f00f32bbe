use std::sync::Arc;

use super::error::{Refused, rule};
use super::fields::Fields;
use super::sampling::{check_logprobs, read_logprobs};
use super::writer::FrameWriter;
use super::{FrameError, Grammar, SamplingParams};

/// ADD: one request under an id that is unique on its connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Add {
    pub id: u64,
    pub request: TokenRequest,
}

/// A request to the engine. The engine handles token ids only, no text.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRequest {
    /// Prompt tokens; never empty.
    pub prompt: Vec<u32>,
    /// For a resumed request: number of tokens at the end of `prompt` that are output of an
    /// interrupted run. They count as output. Less than the prompt's length and than `max_tokens`.
    pub resumed: u32,
    /// At least 1; prompt and output together fit the engine's `max_model_len`.
    pub max_tokens: u32,
    pub min_tokens: u32,
    /// Number of alternatives for each prompt token; for output tokens see
    /// [`SamplingParams::logprobs`].
    pub prompt_logprobs: Option<u8>,
    pub ignore_eos: bool,
    /// Recompute the whole prompt, even if the prefix cache has blocks of it.
    pub skip_prefix_cache: bool,
    /// Return a vector computed from the prompt's hidden states instead of tokens.
    pub pool: bool,
    /// Reject the request if it has not started within the engine's maximum wait.
    pub expires: bool,
    /// Grammar that constrains the output; shared by the choices of one client request.
    pub grammar: Option<Arc<Grammar>>,
    /// Number of the adapter applied to the weights; 0 = none.
    pub adapter: u32,
    /// Lower values are computed first, if the engine schedules by priority.
    pub priority: i32,
    pub stop_token_ids: Vec<u32>,
    /// Requests with different salts share no cached prefix.
    pub cache_salt: Vec<u8>,
    pub sampling: SamplingParams,
}

impl Default for TokenRequest {
    /// A request for one greedily sampled token, with no other options. Invalid until `prompt` is
    /// set.
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            resumed: 0,
            max_tokens: 1,
            min_tokens: 0,
            prompt_logprobs: None,
            ignore_eos: false,
            skip_prefix_cache: false,
            pool: false,
            expires: false,
            grammar: None,
            adapter: 0,
            priority: 0,
            stop_token_ids: Vec::new(),
            cache_salt: Vec::new(),
            sampling: SamplingParams::default(),
        }
    }
}

const IGNORE_EOS: u8 = 1;
const SKIP_PREFIX_CACHE: u8 = 2;
const POOL: u8 = 4;
const EXPIRES: u8 = 8;
const ALL_FLAGS: u8 = IGNORE_EOS | SKIP_PREFIX_CACHE | POOL | EXPIRES;
/// Offset of the prompt's token ids in the frame body, after `id` and the number of token ids.
const PROMPT_AT: usize = 12;

impl Add {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let id = f.u64("id")?;
        let prompt = f.u32_list("prompt")?;
        check_prompt(&prompt).map_err(|e| e.error("ADD", 0))?;
        let resumed = f.u32("resumed")?;
        let max_tokens = f.u32("max_tokens")?;
        let min_tokens = f.u32("min_tokens")?;
        let prompt_logprobs = read_logprobs(f, "prompt_logprobs")?;
        let flags = f.u8("flags")?;
        if flags & !ALL_FLAGS != 0 {
            return Err(f.refuse("flags", 1, flags, "0 to 15"));
        }
        let request = TokenRequest {
            prompt,
            resumed,
            max_tokens,
            min_tokens,
            prompt_logprobs,
            ignore_eos: flags & IGNORE_EOS != 0,
            skip_prefix_cache: flags & SKIP_PREFIX_CACHE != 0,
            pool: flags & POOL != 0,
            expires: flags & EXPIRES != 0,
            adapter: f.u32("adapter")?,
            priority: f.i32("priority")?,
            stop_token_ids: f.u32_list("stop_token_ids")?,
            cache_salt: f.bytes("cache_salt")?.to_vec(),
            sampling: f.nested("sampling", SamplingParams::read)?,
            grammar: f.nested("grammar", Grammar::read_optional)?.map(Arc::new),
        };
        request.check().map_err(|e| e.error("ADD", 0))?;
        Ok(Self { id, request })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        let request = &self.request;
        request.check().map_err(|e| e.error("ADD", 0))?;
        w.u64(self.id);
        w.u32_list(&request.prompt);
        w.u32(request.resumed);
        w.u32(request.max_tokens);
        w.u32(request.min_tokens);
        w.i16(request.prompt_logprobs.map_or(-1, i16::from));
        let flag = |set, flag| if set { flag } else { 0 };
        let skip = flag(request.skip_prefix_cache, SKIP_PREFIX_CACHE);
        let ends = flag(request.pool, POOL) | flag(request.expires, EXPIRES);
        w.u8(flag(request.ignore_eos, IGNORE_EOS) | skip | ends);
        w.u32(request.adapter);
        w.i32(request.priority);
        w.u32_list(&request.stop_token_ids);
        w.bytes(&request.cache_salt);
        w.nested(|w| request.sampling.write(w))?;
        w.nested(|w| request.grammar.as_ref().map_or(Ok(()), |g| g.write(w)))
    }
}

impl TokenRequest {
    /// Checks the ranges when encoding and decoding. Sampling parameters have their own checks.
    fn check(&self) -> Result<(), Refused> {
        check_prompt(&self.prompt)?;
        let after = PROMPT_AT + 4 * self.prompt.len();
        let (max, min, resumed) = (self.max_tokens, self.min_tokens, self.resumed);
        let ok = resumed == 0 || (resumed < max && (resumed as usize) < self.prompt.len());
        let fewer = "fewer than max_tokens and than the prompt";
        rule("resumed", after, &resumed, ok, fewer)?;
        let after = after + 4;
        let ok = (1..=i32::MAX as u32).contains(&max);
        rule("max_tokens", after, &max, ok, "1 to 2147483647")?;
        rule("min_tokens", after + 4, &min, min <= max, "0 to max_tokens")?;
        check_logprobs("prompt_logprobs", after + 8, self.prompt_logprobs)
    }
}

fn check_prompt(ids: &[u32]) -> Result<(), Refused> {
    let some = !ids.is_empty();
    rule("prompt", 8, &"an empty list", some, "at least one token")?;
    match ids.iter().position(|id| i32::try_from(*id).is_err()) {
        Some(i) => {
            let allowed = "token ids up to 2147483647";
            rule("prompt", PROMPT_AT + 4 * i, &ids[i], false, allowed)
        }
        None => Ok(()),
    }
}
