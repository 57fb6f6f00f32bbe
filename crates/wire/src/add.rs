use super::fields::Fields;
use super::writer::FrameWriter;
use super::{FrameError, MAX_LOGPROBS, Problem};

/// ADD: one request under an id that is unique on its connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Add {
    pub id: u64,
    pub request: TokenRequest,
}

/// What a client wants of an engine, in token ids.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenRequest {
    /// Not empty.
    pub prompt: Vec<u32>,
    /// At least 1; prompt and output together fit the engine's `max_model_len`.
    pub max_tokens: u32,
    pub min_tokens: u32,
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: i32,
    /// 1 is off.
    pub top_p: f32,
    pub seed: u64,
    /// Which of the choices of one client request this is; part of the random stream's key.
    pub choice: u32,
    /// Alternatives for each output token, up to [`MAX_LOGPROBS`]; `Some(0)` is the token's own
    /// log-probability alone.
    pub logprobs: Option<u8>,
    /// The same for prompt tokens.
    pub prompt_logprobs: Option<u8>,
    pub ignore_eos: bool,
    /// Compute the whole prompt, though the engine has part of it.
    pub skip_prefix_cache: bool,
    pub stop_token_ids: Vec<u32>,
    /// Requests with different salts share no cached prefix.
    pub cache_salt: Vec<u8>,
}

impl Default for TokenRequest {
    /// Greedy, one token, no extras. The prompt is still to be given.
    fn default() -> Self {
        Self {
            prompt: Vec::new(),
            max_tokens: 1,
            min_tokens: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            seed: 0,
            choice: 0,
            logprobs: None,
            prompt_logprobs: None,
            ignore_eos: false,
            skip_prefix_cache: false,
            stop_token_ids: Vec::new(),
            cache_salt: Vec::new(),
        }
    }
}

const IGNORE_EOS: u8 = 1;
const SKIP_PREFIX_CACHE: u8 = 2;
const ALL_FLAGS: u8 = IGNORE_EOS | SKIP_PREFIX_CACHE;

impl Add {
    pub(super) fn read(f: &mut Fields<'_>) -> Result<Self, FrameError> {
        let id = f.u64("id")?;
        let request = TokenRequest {
            prompt: f.u32_list("prompt")?,
            max_tokens: f.u32("max_tokens")?,
            min_tokens: f.u32("min_tokens")?,
            temperature: f.f32("temperature")?,
            top_k: f.i32("top_k")?,
            top_p: f.f32("top_p")?,
            seed: f.u64("seed")?,
            choice: f.u32("choice")?,
            logprobs: read_logprobs(f, "logprobs")?,
            prompt_logprobs: read_logprobs(f, "prompt_logprobs")?,
            ..TokenRequest::default()
        };
        let flags = f.u8("flags")?;
        if flags & !ALL_FLAGS != 0 {
            return Err(f.refuse("flags", 1, flags, "0 to 3"));
        }
        let request = TokenRequest {
            ignore_eos: flags & IGNORE_EOS != 0,
            skip_prefix_cache: flags & SKIP_PREFIX_CACHE != 0,
            stop_token_ids: f.u32_list("stop_token_ids")?,
            cache_salt: f.bytes("cache_salt")?.to_vec(),
            ..request
        };
        request.check()?;
        Ok(Self { id, request })
    }

    pub(super) fn write(&self, w: &mut FrameWriter<'_>) -> Result<(), FrameError> {
        let request = &self.request;
        request.check()?;
        w.u64(self.id);
        w.u32_list(&request.prompt);
        w.u32(request.max_tokens);
        w.u32(request.min_tokens);
        w.f32(request.temperature);
        w.i32(request.top_k);
        w.f32(request.top_p);
        w.u64(request.seed);
        w.u32(request.choice);
        w.i16(request.logprobs.map_or(-1, i16::from));
        w.i16(request.prompt_logprobs.map_or(-1, i16::from));
        let skip = u8::from(request.skip_prefix_cache) * SKIP_PREFIX_CACHE;
        w.u8(skip | u8::from(request.ignore_eos));
        w.u32_list(&request.stop_token_ids);
        w.bytes(&request.cache_salt);
        Ok(())
    }
}

impl TokenRequest {
    /// The rules of the values, for both directions: an engine that is sent anything else closes
    /// the connection.
    fn check(&self) -> Result<(), FrameError> {
        const TOKEN_ID: &str = "token ids up to 2147483647";
        const LOGPROBS: &str = "-1 to 20";
        let after_prompt = 12 + 4 * self.prompt.len();
        let rule = |field, offset, value: &dyn ToString, ok: bool, allowed| {
            let problem = || Problem::Value {
                value: value.to_string(),
                allowed,
            };
            if ok {
                Ok(())
            } else {
                Err(FrameError {
                    frame: "ADD",
                    field,
                    offset,
                    problem: problem(),
                })
            }
        };
        let alternatives_ok = |k: Option<u8>| k.is_none_or(|k| k <= MAX_LOGPROBS);
        let (warmth, mass) = (self.temperature, self.top_p);

        rule(
            "prompt",
            8,
            &"an empty list",
            !self.prompt.is_empty(),
            "at least one token",
        )?;
        if let Some(i) = self
            .prompt
            .iter()
            .position(|id| i32::try_from(*id).is_err())
        {
            rule("prompt", 12 + 4 * i, &self.prompt[i], false, TOKEN_ID)?;
        }
        let max_ok = (1..=i32::MAX as u32).contains(&self.max_tokens);
        rule(
            "max_tokens",
            after_prompt,
            &self.max_tokens,
            max_ok,
            "1 to 2147483647",
        )?;
        let min_ok = self.min_tokens <= self.max_tokens;
        rule(
            "min_tokens",
            after_prompt + 4,
            &self.min_tokens,
            min_ok,
            "0 to max_tokens",
        )?;
        let warmth_ok = warmth.is_finite() && warmth >= 0.0;
        rule(
            "temperature",
            after_prompt + 8,
            &warmth,
            warmth_ok,
            "finite numbers from 0",
        )?;
        rule(
            "top_k",
            after_prompt + 12,
            &self.top_k,
            self.top_k >= 0,
            "0 and more",
        )?;
        rule(
            "top_p",
            after_prompt + 16,
            &mass,
            mass > 0.0 && mass <= 1.0,
            "above 0, up to 1",
        )?;
        let k = |k: Option<u8>| k.map_or(-1, i16::from);
        rule(
            "logprobs",
            after_prompt + 32,
            &k(self.logprobs),
            alternatives_ok(self.logprobs),
            LOGPROBS,
        )?;
        let prompt_ok = alternatives_ok(self.prompt_logprobs);
        rule(
            "prompt_logprobs",
            after_prompt + 34,
            &k(self.prompt_logprobs),
            prompt_ok,
            LOGPROBS,
        )
    }
}

fn read_logprobs(f: &mut Fields<'_>, field: &'static str) -> Result<Option<u8>, FrameError> {
    let value = f.i16(field)?;
    match u8::try_from(value) {
        Ok(alternatives) => Ok(Some(alternatives)),
        Err(_) if value == -1 => Ok(None),
        Err(_) => Err(f.refuse(field, 2, value, "-1 to 20")),
    }
}
