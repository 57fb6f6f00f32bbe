//! The outputs of one client request: token ids of the engine become the text of its choices.

use std::task::{Context, Poll};

use penstock_engine_client::{Event, RequestStream};
use penstock_openai::{ApiError, CachedByTier, FinishReason, StopReason, Usage};
use penstock_parsers::OutputEvent;
use penstock_text::{Detokenizer, StopStrings};
use penstock_wire::{Finish, LogprobRow, Output, TierKinds, TierTokens};

use crate::marks::Marks;
use crate::metrics::{Ending, RequestTimer};
use crate::reading::Reader;

/// What one or more engine steps added to a choice.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct OutputDelta {
    /// Whole characters, with nothing that may still become a stop string. Empty where the text is
    /// read.
    pub(crate) text: String,
    /// What has been read in the text, where it is.
    pub(crate) events: Vec<OutputEvent>,
    /// All tokens, also one that stopped the request and has no text.
    pub(crate) tokens: Vec<u32>,
    /// One row for each of `tokens`, or none.
    pub(crate) logprobs: Vec<LogprobRow>,
    /// Row i belongs to prompt token i + 1. Comes with the first delta.
    pub(crate) prompt_logprobs: Vec<LogprobRow>,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) stop_reason: Option<StopReason>,
}

impl OutputDelta {
    /// Appends a later delta of the same choice.
    pub(crate) fn merge(&mut self, later: Self) {
        self.text.push_str(&later.text);
        for event in later.events {
            OutputEvent::append(&mut self.events, event);
        }
        self.tokens.extend(later.tokens);
        self.logprobs.extend(later.logprobs);
        self.prompt_logprobs.extend(later.prompt_logprobs);
        self.finish = later.finish;
        self.stop_reason = later.stop_reason;
    }
}

/// How token ids become the text of a choice.
pub(crate) struct TextRules {
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    /// The text keeps what stopped it.
    pub(crate) include_stop: bool,
    /// Stop strings do not count in the first tokens.
    pub(crate) min_tokens: u32,
    /// The request wanted no output: the one token that the engine must make is dropped.
    pub(crate) discard_output: bool,
}

/// One request at the engine.
pub(crate) struct Choice {
    events: RequestStream,
    detokenizer: Detokenizer,
    stops: StopStrings,
    rules: TextRules,
    reader: Option<Reader>,
    timer: RequestTimer,
    /// Tokens so far, without tiers.
    usage: Usage,
    tier_tokens: TierTokens,
    finished: bool,
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
            tier_tokens: TierTokens::default(),
            finished: false,
        }
    }

    /// The next delta. Not polled after a finish or an error.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<OutputDelta, ApiError>> {
        let delta = match self.events.poll_next(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Event::Output(output))) => self.accept(output),
            Poll::Ready(Some(Event::Failed { reason })) => Err(ApiError::engine_failed(&reason)),
            Poll::Ready(None) => Err(ApiError::internal(
                "The engine ended the request without a finish.",
            )),
        };
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

    fn accept(&mut self, mut output: Output) -> Result<OutputDelta, ApiError> {
        refusal(&mut output)?;
        if output.cached_tokens > 0 {
            self.usage.cached_tokens = output.cached_tokens;
            self.tier_tokens = output.tier_tokens;
        }
        self.timer.tokens(&output);
        if self.rules.discard_output {
            return Ok(OutputDelta {
                prompt_logprobs: output.prompt_logprobs,
                finish: (output.finish != Finish::None).then_some(FinishReason::Length),
                ..OutputDelta::default()
            });
        }
        Ok(self.detokenize(output))
    }

    fn detokenize(&mut self, output: Output) -> OutputDelta {
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

    /// Takes in a step that another server has sent already. Rows of log-probabilities are not
    /// known; with `scored` there are as many as tokens.
    fn replay(&mut self, tokens: &[u32], scored: bool) -> OutputDelta {
        let row = LogprobRow {
            logprob: 0.0,
            rank: 1,
            alternatives: Vec::new(),
        };
        self.detokenize(Output {
            tokens: tokens.to_vec(),
            logprobs: vec![row; if scored { tokens.len() } else { 0 }],
            ..Output::default()
        })
    }

    /// Turns the text of one token, or the last of the text, into events.
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

    /// Appends what may be sent of `text`; true when a stop string has ended the output.
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

    /// Releases the text held back once the output is complete; false while it is not.
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

/// The error of an ending that the client did not ask for.
pub(crate) fn refusal(output: &mut Output) -> Result<(), ApiError> {
    match output.finish {
        Finish::None | Finish::Stop | Finish::Length => Ok(()),
        Finish::Rejected => Err(ApiError::queue_full(1)),
        Finish::Cancelled => Err(ApiError::unavailable("The engine is shutting down.", 5)),
        Finish::Error => {
            let reason = output.error.take();
            let reason = reason.as_deref().unwrap_or("it gave no reason");
            let message = format!("The engine could not run the request: {reason}.");
            Err(ApiError::internal(message))
        }
    }
}

/// The choices of a request, by index. Dropping them cancels what still runs at the engine.
pub(crate) struct ChoiceStreams {
    choices: Vec<Choice>,
    /// The choice to poll first, so that none starves the others.
    turn: usize,
    /// `Some` when usage names the tiers that cached tokens came from.
    tiers: Option<TierKinds>,
    /// What was sent before by another server, step by step.
    pub(crate) replayed: Vec<OutputDelta>,
    /// `Some` where the stream is to have marks.
    pub(crate) marks: Option<Marks>,
}

impl ChoiceStreams {
    pub(crate) fn new(choices: Vec<Choice>, tiers: Option<TierKinds>) -> Self {
        Self {
            choices,
            turn: 0,
            tiers,
            replayed: Vec::new(),
            marks: None,
        }
    }

    /// Takes in the steps of a stream that broke off, of one choice.
    ///
    /// # Errors
    /// The output has ended in them.
    pub(crate) fn replay(&mut self, steps: &[Vec<u32>], scored: bool) -> Result<(), ApiError> {
        let Some(choice) = self.choices.first_mut() else {
            return Ok(());
        };
        for step in steps {
            let delta = choice.replay(step, scored);
            if delta.finish.is_some() {
                return Err(ApiError::invalid("resume", "resume: the output has ended."));
            }
            self.replayed.push(delta);
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.choices.len()
    }

    /// The next delta of any choice with its index; `None` when all have ended. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, OutputDelta), ApiError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`Self::next`] as a poll.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<(usize, OutputDelta), ApiError>>> {
        let count = self.choices.len();
        let mut open = false;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let choice = &mut self.choices[index];
            if choice.finished {
                continue;
            }
            open = true;
            if let Poll::Ready(delta) = choice.poll_next(cx) {
                self.turn = index + 1;
                return Poll::Ready(Some(delta.map(|delta| (index, delta))));
            }
        }
        if open {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }

    /// Tokens so far, over all choices.
    pub(crate) fn usage(&self) -> Usage {
        self.usage_over(&self.choices)
    }

    /// Tokens so far of one choice.
    pub(crate) fn usage_of(&self, index: usize) -> Usage {
        self.usage_over(&self.choices[index..=index])
    }

    fn usage_over(&self, choices: &[Choice]) -> Usage {
        let mut usage = Usage::default();
        let mut tiers = TierTokens::default();
        for choice in choices {
            usage.prompt_tokens += choice.usage.prompt_tokens;
            usage.completion_tokens += choice.usage.completion_tokens;
            usage.cached_tokens += choice.usage.cached_tokens;
            usage.reasoning_tokens += choice.usage.reasoning_tokens;
            tiers.ram += choice.tier_tokens.ram;
            tiers.disk += choice.tier_tokens.disk;
            tiers.remote += choice.tier_tokens.remote;
        }
        let by_tier = |kinds| cached_by_tier(usage.cached_tokens, tiers, kinds);
        usage.cached_by_tier = self.tiers.map(by_tier);
        usage
    }
}

/// `tokens` are the part of `cached` that came from behind the pool, at most all of it.
fn cached_by_tier(cached: u32, tokens: TierTokens, kinds: TierKinds) -> CachedByTier {
    let behind = tokens.total().min(cached.into()) as u32;
    CachedByTier {
        pool: cached - behind,
        ram: kinds.ram.then_some(tokens.ram),
        disk: kinds.disk.then_some(tokens.disk),
        remote: kinds.remote.then_some(tokens.remote),
    }
}
