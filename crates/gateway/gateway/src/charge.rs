//! The tokens that a key pays for a request: an estimate while the answer comes, then the answer's
//! own usage where it has one.
//!
//! Every request costs something, whenever its client leaves: the prompt when it is sent, a stream
//! with each text, an answer in one piece by the time it took so far.

use std::sync::Arc;
use std::time::Instant;

use penstock_http::Caller;

use crate::events::{EventContent, values};
use crate::members::is_text;
use crate::pool::{Pool, Prompt};
use crate::scan::Fields;
use crate::usage::Usage;

/// Bytes of a text that are one token where they come alone, and of each token of a longer one.
const ONE_TOKEN: usize = 16;
const TOKEN_BYTES: u64 = 4;

/// The properties of a request that set its price.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CostBasis {
    /// Bytes of the prompt that are text; 0 where no key pays for them.
    prompt_bytes: usize,
    /// The answer is the text of a model.
    is_text: bool,
    /// It is to come event by event.
    is_stream: bool,
    most_tokens: Option<u64>,
    pub(crate) choices: u64,
}

impl CostBasis {
    /// `has_caller`: a key pays for the request.
    pub(crate) fn of(path: &str, fields: &Fields, body: &[u8], has_caller: bool) -> Self {
        let texts = fields.prompt(body);
        let texts = texts.iter().filter(|_| has_caller);
        Self {
            prompt_bytes: texts.map(|text| text_bytes(text)).sum(),
            is_text: is_text(path),
            is_stream: fields.is_stream(body),
            most_tokens: fields.most_tokens(path, body),
            choices: fields.choices(path, body),
        }
    }
}

/// How an answer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Event by event.
    Events,
    /// One body; the number of bytes received so far.
    Whole(u64),
    /// Compressed, or not shown to the gateway.
    Unread,
}

/// What one request costs. It ends once; dropped before, the client has left.
#[derive(Debug)]
pub(crate) struct Charge {
    caller: Option<Arc<Caller>>,
    pool: Arc<Pool>,
    asked: CostBasis,
    /// Estimated tokens of the prompt.
    prompt_tokens: u64,
    /// Bytes that routing takes for the prompt.
    prompt_bytes: usize,
    began: Instant,
    /// `None` before the answer's header.
    delivery: Option<Delivery>,
    usage: Usage,
    /// Tokens of the output, by the texts that came.
    said: u64,
    /// The usage has counted all of the output that came.
    is_counted: bool,
    paid: u64,
    ended: bool,
}

impl Charge {
    /// The request is sent: its prompt is paid for.
    pub(crate) fn begin(
        pool: Arc<Pool>,
        caller: Option<Arc<Caller>>,
        asked: CostBasis,
        prompt: &Prompt,
    ) -> Self {
        let prompt_tokens = match prompt.tokens.len() {
            0 => (asked.prompt_bytes as f32 / pool.bytes_per_token()).ceil() as u64,
            tokens => tokens as u64,
        };
        let mut charge = Self {
            caller,
            pool,
            asked,
            prompt_tokens,
            prompt_bytes: prompt.bytes,
            began: Instant::now(),
            delivery: None,
            usage: Usage::default(),
            said: 0,
            is_counted: false,
            paid: 0,
            ended: false,
        };
        charge.pay(charge.so_far());
        charge
    }

    /// The answer has begun.
    pub(crate) fn answered(&mut self, delivery: Delivery) {
        self.delivery = Some(delivery);
    }

    /// An event has come, and this is its data.
    pub(crate) fn event(&mut self, data: &[u8]) {
        if self.caller.is_none() || self.ended {
            return;
        }
        let tokens = match self.asked.is_text {
            true => values(data)
                .map(|value| tokens(&EventContent::of(&value)))
                .sum(),
            false => 1,
        };
        if tokens > 0 {
            self.said += tokens;
            self.is_counted = false;
            self.pay(self.so_far());
        }
    }

    /// `more` bytes of an answer in one piece have come.
    pub(crate) fn bytes(&mut self, more: usize) {
        if let Some(Delivery::Whole(bytes)) = &mut self.delivery {
            *bytes += more as u64;
        }
    }

    /// The answer has a `usage`.
    pub(crate) fn usage(&mut self, json: &[u8]) {
        if self.ended {
            return;
        }
        let says_output = self.usage.note(json);
        self.is_counted |= says_output || !self.asked.is_text;
        self.pay(self.so_far());
    }

    /// The request costs nothing, whatever follows: its answer is an error, never comes, or is one
    /// piece that broke off.
    pub(crate) fn refund(&mut self) {
        self.ended = true;
        self.pay(0);
    }

    /// The answer is over. `is_whole`: all of it has come.
    pub(crate) fn end(&mut self, is_whole: bool) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(prompt) = self.usage.prompt_tokens {
            self.pool.learn(self.prompt_bytes, prompt);
        }
        if let Some(output) = self.usage.completion_tokens.filter(|_| is_whole) {
            self.pool.learn_rate(output, self.began.elapsed());
        }
        let is_known = self.is_counted || !self.asked.is_text;
        let unsaid = match self.delivery {
            _ if is_known => 0,
            // the header of a stream comes with its first token
            None if self.asked.is_stream => 0,
            Some(Delivery::Events) => 0,
            Some(Delivery::Whole(bytes)) if is_whole => bytes / TOKEN_BYTES,
            _ => self.pool.tokens_in(self.began.elapsed()),
        };
        let most = self.asked.most_tokens.unwrap_or(u64::MAX);
        self.pay(self.so_far() + unsaid.min(most));
    }

    /// The tokens so far: of the prompt and of the output that has come.
    fn so_far(&self) -> u64 {
        let prompt = self.usage.prompt_tokens.map(u64::from);
        let counted = self.usage.completion_tokens.map_or(0, u64::from);
        let output = match self.is_counted {
            true => counted,
            false => counted.max(self.said),
        };
        prompt.unwrap_or(self.prompt_tokens) + output
    }

    /// Sets the payment to `tokens`.
    fn pay(&mut self, tokens: u64) {
        let before = std::mem::replace(&mut self.paid, tokens);
        let Some(caller) = &self.caller else {
            return;
        };
        let part = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
        match tokens.checked_sub(before) {
            Some(more) => caller.usage.spend(part(more)),
            None => caller.usage.give_back(part(before - tokens)),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.end(false);
    }
}

/// Tokens in the texts of an event. Engines send one text for each token; a longer text counts as
/// several tokens.
fn tokens(said: &EventContent) -> u64 {
    let texts = said.texts.iter().map(|(_, text)| text.len());
    let tokens = texts.map(|bytes| match bytes {
        0..=ONE_TOKEN => 1,
        bytes => bytes as u64 / TOKEN_BYTES,
    });
    tokens.sum()
}

/// Bytes of a text without the files in it: a picture costs by its size in pixels, and is hundreds
/// of times longer as text.
fn text_bytes(text: &[u8]) -> usize {
    const FILE: &[u8] = b";base64,";
    const FILE_BYTES: usize = 4096;
    let files = memchr::memmem::find_iter(text, FILE).map(|at| {
        let file = &text[at..];
        memchr::memchr(b'"', file).unwrap_or(file.len())
    });
    let (count, bytes) = files.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
    text.len().saturating_sub(bytes) + count * FILE_BYTES
}
