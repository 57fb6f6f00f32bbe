//! Counts the tokens that one request costs its API key. The count is an estimate while the
//! response is streamed; the response's `usage`, if present, replaces it.
//!
//! A client that disconnects still pays: for the prompt once the request is sent, for each streamed
//! text, and for the elapsed time of a response that is not streamed.

use std::sync::Arc;
use std::time::Instant;

use penstock_http::Caller;

use crate::events::{EventContent, values};
use crate::members::is_text;
use crate::pool::{Pool, Prompt};
use crate::scan::Fields;
use crate::usage::Usage;

/// A text of at most `ONE_TOKEN` bytes counts as one token. A longer text counts as one token for
/// every `TOKEN_BYTES` bytes.
const ONE_TOKEN: usize = 16;
const TOKEN_BYTES: u64 = 4;

/// The properties of a request that set its price.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CostBasis {
    /// Bytes of text in the prompt; 0 if no API key is charged.
    prompt_bytes: usize,
    /// Whether the response is generated text.
    is_text: bool,
    /// Whether the client requests a stream of events.
    is_stream: bool,
    most_tokens: Option<u64>,
    pub(crate) choices: u64,
}

impl CostBasis {
    /// `has_caller`: an API key is charged for the request.
    pub(crate) fn of(path: &str, fields: &Fields, body: &[u8], has_caller: bool) -> Self {
        let texts = match has_caller {
            true => fields.prompt(body),
            false => Vec::new(),
        };
        Self {
            prompt_bytes: texts.iter().map(|text| text_bytes(text)).sum(),
            is_text: is_text(path),
            is_stream: fields.is_stream(body),
            most_tokens: fields.most_tokens(path, body),
            choices: fields.choices(path, body),
        }
    }
}

/// How the response is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// A stream of events.
    Events,
    /// One body, with the number of bytes received so far.
    Whole(u64),
    /// Compressed, or not visible to the gateway.
    Unread,
}

/// The charge for one request. `end` settles it, once; a drop before that means that the client
/// disconnected.
#[derive(Debug)]
pub(crate) struct Charge {
    caller: Option<Arc<Caller>>,
    pool: Arc<Pool>,
    asked: CostBasis,
    /// Estimated tokens of the prompt.
    prompt_tokens: u64,
    /// Length of the prompt as routing measures it, in bytes.
    prompt_bytes: usize,
    began: Instant,
    /// `None` until the response header has arrived.
    delivery: Option<Delivery>,
    usage: Usage,
    /// Output tokens, estimated from the texts received.
    said: u64,
    /// Whether the reported usage covers all output received so far.
    is_counted: bool,
    paid: u64,
    ended: bool,
}

impl Charge {
    /// Charges for the prompt when the request is sent.
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

    /// Records how the response is delivered, when its header arrives.
    pub(crate) fn answered(&mut self, delivery: Delivery) {
        self.delivery = Some(delivery);
    }

    /// Charges for the output in the `data` of one event.
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

    /// Counts `more` received bytes of a response that is not streamed.
    pub(crate) fn bytes(&mut self, more: usize) {
        if let Some(Delivery::Whole(bytes)) = &mut self.delivery {
            *bytes += more as u64;
        }
    }

    /// Applies a `usage` object of the response to the charge.
    pub(crate) fn usage(&mut self, json: &[u8]) {
        if self.ended {
            return;
        }
        let says_output = self.usage.note(json);
        self.is_counted |= says_output || !self.asked.is_text;
        self.pay(self.so_far());
    }

    /// The token counts that the response has reported so far.
    pub(crate) fn reported(&self) -> Usage {
        self.usage
    }

    /// Refunds the whole charge permanently: the response is an error, never arrives, or is a
    /// single body that broke off.
    pub(crate) fn refund(&mut self) {
        self.ended = true;
        self.pay(0);
    }

    /// Settles the charge at the end of the response. `is_whole`: whether the response is complete.
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
            // the header of a stream arrives with its first token
            None if self.asked.is_stream => 0,
            Some(Delivery::Events) => 0,
            Some(Delivery::Whole(bytes)) if is_whole => bytes / TOKEN_BYTES,
            _ => self.pool.tokens_in(self.began.elapsed()),
        };
        let most = self.asked.most_tokens.unwrap_or(u64::MAX);
        self.pay(self.so_far() + unsaid.min(most));
    }

    /// Tokens charged for so far: the prompt and the output received.
    fn so_far(&self) -> u64 {
        let prompt = self.usage.prompt_tokens.map(u64::from);
        let counted = self.usage.completion_tokens.map_or(0, u64::from);
        let output = match self.is_counted {
            true => counted,
            false => counted.max(self.said),
        };
        prompt.unwrap_or(self.prompt_tokens) + output
    }

    /// Sets the total charge to `tokens`: the API key pays or gets back the difference.
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

/// Number of tokens in the texts of an event. Engines usually send one text for each token; a
/// longer text counts as several tokens.
fn tokens(said: &EventContent) -> u64 {
    let texts = said.texts.iter().map(|(_, text)| text.len());
    let tokens = texts.map(|bytes| match bytes {
        0..=ONE_TOKEN => 1,
        bytes => bytes as u64 / TOKEN_BYTES,
    });
    tokens.sum()
}

/// Length of a text in bytes. Embedded base64 files count up to a cap: the token cost of an image
/// depends on its pixels and is far below the length of its encoding.
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
