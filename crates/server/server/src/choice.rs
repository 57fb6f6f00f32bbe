//! One choice: turns token ids of the engine into text.

use std::task::{Context, Poll, ready};

use penstock_api_types::{ApiError, FinishReason, StopReason, Usage};
use penstock_engine_client::RequestStream;
use penstock_tokenizer::{Detokenizer, StopStrings};
use penstock_wire::{Finish, Output, TierTokens};

use crate::delta::OutputDelta;
use crate::engine::poll_output;
use crate::metrics::{Ending, RequestTimer};
use crate::reading::Reader;

/// Rules for turning token ids into the text of a choice.
pub(crate) struct TextRules {
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    /// The text includes the stop string or stop token.
    pub(crate) include_stop: bool,
    /// Number of tokens at the start of the output in which stop strings are ignored.
    pub(crate) min_tokens: u32,
    /// The request has `max_tokens` 0: the one token that the engine always generates is dropped.
    pub(crate) discard_output: bool,
}

/// One choice of a response; a separate request to the engine.
pub(crate) struct Choice {
    events: RequestStream,
    detokenizer: Detokenizer,
    stops: StopStrings,
    rules: TextRules,
    reader: Option<Reader>,
    timer: RequestTimer,
    /// Token counts so far; `tier_tokens` has the split by tier.
    pub(crate) usage: Usage,
    /// The counts already passed to the access log.
    logged: Usage,
    pub(crate) tier_tokens: TierTokens,
    pub(crate) finished: bool,
}

impl Choice {
    pub(crate) fn new(
        events: RequestStream,
        detokenizer: Detokenizer,
        rules: TextRules,
        reader: Option<Reader>,
        timer: RequestTimer,
        prompt_tokens: u32,
    ) -> Self {
        Self {
            events,
            detokenizer,
            stops: StopStrings::new(rules.stop.clone()).include_stop(rules.include_stop),
            rules,
            reader,
            timer,
            usage: Usage {
                prompt_tokens,
                ..Usage::default()
            },
            logged: Usage::default(),
            tier_tokens: TierTokens::default(),
            finished: false,
        }
    }

    /// Polls for the next delta. Must not be called after a finish or an error.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<OutputDelta, ApiError>> {
        let output = ready!(poll_output(&mut self.events, cx));
        let delta = output.map(|output| self.accept(output));
        if let Ok(delta) = &delta {
            self.timer.record(self.usage, self.logged, delta.finish);
            self.logged = self.usage;
        }
        let ending = match delta.as_ref().map(|delta| delta.finish) {
            Ok(None) => return Poll::Ready(delta),
            Ok(Some(FinishReason::Length)) => Ending::Length,
            Ok(Some(_)) => Ending::Stop,
            Err(_) => Ending::Error,
        };
        self.finished = true;
        self.timer.ended(ending);
        Poll::Ready(delta)
    }

    fn accept(&mut self, output: Output) -> OutputDelta {
        // A prompt counts once, for its first choice, and so does what was cached of it.
        if output.cached_tokens > 0 && self.usage.prompt_tokens > 0 {
            self.usage.cached_tokens = output.cached_tokens;
            self.tier_tokens = output.tier_tokens;
        }
        self.timer.tokens(&output);
        if self.rules.discard_output {
            return OutputDelta {
                prompt_logprobs: output.prompt_logprobs,
                finish: (output.finish != Finish::None).then_some(FinishReason::Length),
                ..OutputDelta::default()
            };
        }
        self.detokenize(output)
    }

    /// Detokenizes an output. Text that may become a stop string is held back.
    pub(crate) fn detokenize(&mut self, output: Output) -> OutputDelta {
        let mut delta = OutputDelta {
            tokens: output.tokens,
            logprobs: output.logprobs,
            prompt_logprobs: output.prompt_logprobs,
            ..OutputDelta::default()
        };
        let stop_token = output.stop_token.filter(|_| output.finish == Finish::Stop);
        let silent = stop_token.filter(|_| !self.rules.include_stop);
        let with_text = delta.tokens.len()
            - usize::from(silent.is_some() && delta.tokens.last().copied() == silent);
        for index in 0..with_text {
            self.usage.completion_tokens += 1;
            let text = self.detokenizer.push(delta.tokens[index]);
            let stopped = self.emit(&text, &mut delta);
            self.read(&mut delta);
            if stopped {
                delta.tokens.truncate(index + 1);
                delta.logprobs.truncate(index + 1);
                return delta;
            }
        }
        self.usage.completion_tokens += (delta.tokens.len() - with_text) as u32;
        if self.finish(output.finish, stop_token, &mut delta) {
            self.read(&mut delta);
        }
        delta
    }

    /// Parses the new text of the delta into events.
    fn read(&mut self, delta: &mut OutputDelta) {
        let Some(reader) = &mut self.reader else {
            return;
        };
        let reasoned = reader.reasons();
        reader.push(&std::mem::take(&mut delta.text), &mut delta.events);
        match delta.finish {
            Some(finish) => delta.finish = Some(reader.finish(finish, &mut delta.events)),
            None => self.usage.reasoning_tokens += u32::from(reasoned && reader.reasons()),
        }
    }

    /// Appends the part of `text` that cannot be the start of a stop string; true if a stop string
    /// has ended the output.
    fn emit(&mut self, text: &str, delta: &mut OutputDelta) -> bool {
        if self.usage.completion_tokens <= self.rules.min_tokens {
            delta.text.push_str(text);
            return false;
        }
        let outcome = self.stops.push(text);
        delta.text.push_str(&outcome.emit);
        let Some(index) = outcome.stopped else {
            return false;
        };
        delta.finish = Some(FinishReason::Stop);
        delta.stop_reason = self.rules.stop.get(index).cloned().map(StopReason::Text);
        true
    }

    /// Releases the held-back text once the output is complete; returns false before that.
    fn finish(&mut self, finish: Finish, stop_token: Option<u32>, delta: &mut OutputDelta) -> bool {
        let reason = match finish {
            Finish::Stop => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            _ => return false,
        };
        let rest = self.detokenizer.finish();
        if self.emit(&rest, delta) {
            return true;
        }
        delta.text.push_str(&self.stops.finish());
        delta.finish = Some(reason);
        let named = stop_token.filter(|token| self.rules.stop_token_ids.contains(token));
        delta.stop_reason = named.map(StopReason::Token);
        true
    }
}
