//! A request in the batcher, from its arrival to its end.

use std::time::Duration;

use penstock_prefix::Digest;
use penstock_wire::{Finish, Output, TokenRequest};

use crate::answers::Answer;

/// A request. `tokens` has the known tokens of prompt and answer; the first `computed` tokens have
/// KV. Prefill, decode and recomputation differ only in `computed` and the number of tokens.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: u64,
    /// Arrival number. A lower one has priority.
    pub(super) order: u64,
    pub(super) prompt_len: usize,
    /// Whether the request ends with a vector in place of its first token.
    pub(super) pool: bool,
    /// Number of known tokens at which the request ends with finish reason `length`.
    length_limit: usize,
    /// Number of known tokens up to which stop tokens do not end the request.
    min_length: usize,
    stops: Vec<u32>,
    /// Number of known tokens at which a fault ends the request.
    early_stop: Option<usize>,
    pub(super) reads_cache: bool,
    pub(super) salt: Vec<u8>,
    /// Number of alternatives for each answer token; `None`: no log-probabilities.
    pub(super) logprobs: Option<u8>,
    /// Number of alternatives for each prompt token; `None`: no log-probabilities, or they have
    /// been sent.
    pub(super) prompt_logprobs: Option<u8>,
    pub(super) answer: Answer,
    pub(super) tokens: Vec<u32>,
    pub(super) computed: usize,
    /// Number of tokens that the step in flight computes; 0 if the sequence is not in the step.
    pub(super) work: usize,
    pub(super) cancelled: bool,
    pub(super) blocks: Vec<u32>,
    /// Digests of its leading full blocks, as far as they have been computed.
    pub(super) digests: Vec<Digest>,
    /// Number of its leading blocks that are published in the pool.
    pub(super) published: usize,
    /// Digest of a block that it can share once a running sequence has computed it.
    pub(super) awaits: Option<Digest>,
    arrived: Duration,
    first_schedule: Option<Duration>,
    cached_tokens: u32,
    started: bool,
}

/// Limits that come from the engine, and from a fault.
pub(super) struct Bounds {
    pub(super) max_model_len: usize,
    pub(super) eos: u32,
    pub(super) early_stop: Option<u32>,
}

impl Sequence {
    pub(super) fn new(
        id: u64,
        order: u64,
        request: TokenRequest,
        answer: Answer,
        bounds: &Bounds,
        arrived: Duration,
    ) -> Self {
        let prompt_len = request.prompt.len() - request.resumed as usize;
        let mut stops = request.stop_token_ids;
        if !request.ignore_eos {
            stops.push(bounds.eos);
        }
        let wanted = prompt_len + request.max_tokens as usize;
        Self {
            id,
            order,
            prompt_len,
            pool: request.pool,
            length_limit: wanted.min(bounds.max_model_len),
            min_length: prompt_len + request.min_tokens as usize,
            stops,
            early_stop: bounds.early_stop.map(|count| prompt_len + count as usize),
            reads_cache: !request.skip_prefix_cache,
            salt: request.cache_salt,
            logprobs: request.sampling.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            answer,
            tokens: request.prompt,
            computed: 0,
            work: 0,
            cancelled: false,
            blocks: Vec::new(),
            digests: Vec::new(),
            published: 0,
            awaits: None,
            arrived,
            first_schedule: None,
            cached_tokens: 0,
            started: false,
        }
    }

    pub(super) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Number of tokens that remain until the sequence's length limit.
    pub(super) fn outputs_left(&self) -> usize {
        self.length_limit.saturating_sub(self.tokens.len())
    }

    /// Whether the sequence's next token needs a decode that is not part of the step in flight.
    pub(super) fn decodes(&self) -> bool {
        self.work == 0 && self.remaining() == 1
    }

    /// Number of the next answer token, counted from 1.
    pub(super) fn next_number(&self) -> u32 {
        (self.tokens.len() - self.prompt_len + 1) as u32
    }

    /// Records an admission to the running sequences. Returns true for the first one.
    pub(super) fn enter(&mut self, now: Duration) -> bool {
        if self.first_schedule.is_some() {
            return false;
        }
        self.first_schedule = Some(now);
        self.cached_tokens = self.computed.min(self.prompt_len) as u32;
        true
    }

    /// Appends a sampled token. The output has the finish reason, if this token ends the request.
    pub(super) fn advance(&mut self, token: u32) -> Output {
        self.tokens.push(token);
        let known = self.tokens.len();
        let mut output = self.output();
        output.tokens.push(token);
        if self.stops.contains(&token) && known > self.min_length {
            output.finish = Finish::Stop;
            output.stop_token = Some(token);
        } else if self.early_stop.is_some_and(|limit| known >= limit) {
            output.finish = Finish::Stop;
        } else if known >= self.length_limit {
            output.finish = Finish::Length;
        }
        output
    }

    /// An output without tokens. The first output also has the number of cached tokens and the time
    /// in the queue.
    pub(super) fn output(&mut self) -> Output {
        let first = !std::mem::replace(&mut self.started, true);
        let queued = self
            .first_schedule
            .map(|at| at.saturating_sub(self.arrived));
        Output {
            id: self.id,
            cached_tokens: if first { self.cached_tokens } else { 0 },
            queue_us: match queued {
                Some(queued) if first => u32::try_from(queued.as_micros()).unwrap_or(u32::MAX),
                _ => 0,
            },
            ..Output::default()
        }
    }

    /// The final output of a request that does not end with a token.
    pub(super) fn ended(&mut self, finish: Finish, error: Option<String>) -> Output {
        Output {
            finish,
            error,
            ..self.output()
        }
    }
}
