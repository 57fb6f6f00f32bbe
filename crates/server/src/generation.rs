//! One request at the engine: token ids come in, pieces of text go out.

use std::sync::Arc;

use penstock_engine_client::{Event, RequestStream};
use penstock_openai::ApiError;
use penstock_openai::{FinishReason, StopReason};
use penstock_text::{Detokenizer, StopStrings, Tokenizer};
use penstock_wire::{Finish, LogprobRow, Output, TierTokens};

use crate::metrics::{Ending, Timeline};

/// What one or more engine steps added to a choice.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Piece {
    /// Whole characters, with nothing that may still become a stop string.
    pub(crate) text: String,
    /// All tokens, also one that stopped the request and has no text.
    pub(crate) tokens: Vec<u32>,
    /// One row for each of `tokens`, or none.
    pub(crate) logprobs: Vec<LogprobRow>,
    /// Row i belongs to prompt token i + 1. Comes with the first piece.
    pub(crate) prompt_logprobs: Vec<LogprobRow>,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) stop_reason: Option<StopReason>,
}

impl Piece {
    /// Appends a later piece of the same choice.
    pub(crate) fn merge(&mut self, later: Self) {
        self.text.push_str(&later.text);
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
    /// Stop strings do not count in the first tokens.
    pub(crate) min_tokens: u32,
    pub(crate) skip_special_tokens: bool,
    /// The request wanted no output: the one token that the engine must make is dropped.
    pub(crate) discard_output: bool,
}

pub(crate) struct Generation {
    events: RequestStream,
    detokenizer: Detokenizer,
    stops: StopStrings,
    rules: TextRules,
    timeline: Timeline,
    prompt_tokens: u32,
    generated: u32,
    cached_tokens: u32,
    tier_tokens: TierTokens,
    finished: bool,
}

impl Generation {
    /// `prompt` is what was submitted.
    pub(crate) fn new(
        events: RequestStream,
        tokenizer: &Arc<Tokenizer>,
        prompt: &[u32],
        rules: TextRules,
        timeline: Timeline,
    ) -> Self {
        Self {
            events,
            detokenizer: Detokenizer::new(tokenizer.clone(), rules.skip_special_tokens, prompt),
            stops: StopStrings::new(rules.stop.clone()),
            rules,
            timeline,
            prompt_tokens: prompt.len() as u32,
            generated: 0,
            cached_tokens: 0,
            tier_tokens: TierTokens::default(),
            finished: false,
        }
    }

    pub(crate) fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Tokens of the output so far.
    pub(crate) fn generated(&self) -> u32 {
        self.generated
    }

    /// Prompt tokens that were not computed; known with the first piece.
    pub(crate) fn cached_tokens(&self) -> u32 {
        self.cached_tokens
    }

    /// Those of them that came from behind the pool.
    pub(crate) fn tier_tokens(&self) -> TierTokens {
        self.tier_tokens
    }

    /// Whether the last piece has been given.
    pub(crate) fn finished(&self) -> bool {
        self.finished
    }

    /// The next piece. Safe to drop and call again. Not called after the finish or an error.
    pub(crate) async fn next(&mut self) -> Result<Piece, ApiError> {
        let piece = match self.events.next().await {
            Some(Event::Output(output)) => self.accept(output),
            Some(Event::Failed { reason }) => Err(ApiError::engine_failed(&reason)),
            None => Err(ApiError::internal(
                "The engine ended the request without a finish.",
            )),
        };
        self.note_end(&piece);
        piece
    }

    fn note_end(&mut self, piece: &Result<Piece, ApiError>) {
        let ending = match piece {
            Ok(Piece { finish: None, .. }) => return,
            Ok(Piece {
                finish: Some(FinishReason::Stop),
                ..
            }) => Ending::Stop,
            Ok(Piece {
                finish: Some(FinishReason::Length),
                ..
            }) => Ending::Length,
            Err(_) => Ending::Error,
        };
        self.finished = true;
        self.timeline.ended(ending);
    }

    fn accept(&mut self, mut output: Output) -> Result<Piece, ApiError> {
        refusal(&mut output)?;
        if output.cached_tokens > 0 {
            self.cached_tokens = output.cached_tokens;
            self.tier_tokens = output.tier_tokens;
        }
        self.timeline.tokens(&output);
        if self.rules.discard_output {
            return Ok(Piece {
                prompt_logprobs: output.prompt_logprobs,
                finish: (output.finish != Finish::None).then_some(FinishReason::Length),
                ..Piece::default()
            });
        }
        Ok(self.piece(output))
    }

    fn piece(&mut self, output: Output) -> Piece {
        let mut piece = Piece {
            tokens: output.tokens,
            logprobs: output.logprobs,
            prompt_logprobs: output.prompt_logprobs,
            ..Piece::default()
        };
        let silent = (output.finish == Finish::Stop)
            .then_some(output.stop_token)
            .flatten();
        let with_text = piece.tokens.len()
            - usize::from(silent.is_some() && piece.tokens.last().copied() == silent);
        for index in 0..with_text {
            self.generated += 1;
            let text = self.detokenizer.push(piece.tokens[index]);
            if self.emit(&text, &mut piece) {
                piece.tokens.truncate(index + 1);
                piece.logprobs.truncate(index + 1);
                return piece;
            }
        }
        self.generated += (piece.tokens.len() - with_text) as u32;
        self.finish(output.finish, silent, &mut piece);
        piece
    }

    /// Appends what may be sent of `text`; true when a stop string has ended the output.
    fn emit(&mut self, text: &str, piece: &mut Piece) -> bool {
        if self.generated <= self.rules.min_tokens {
            piece.text.push_str(text);
            return false;
        }
        let outcome = self.stops.push(text);
        piece.text.push_str(&outcome.emit);
        let Some(index) = outcome.stopped else {
            return false;
        };
        piece.finish = Some(FinishReason::Stop);
        piece.stop_reason = self.rules.stop.get(index).cloned().map(StopReason::Text);
        true
    }

    /// Releases what was held back when the engine says that the output is complete.
    fn finish(&mut self, finish: Finish, stop_token: Option<u32>, piece: &mut Piece) {
        let reason = match finish {
            Finish::Stop => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            _ => return,
        };
        let rest = self.detokenizer.finish();
        if self.emit(&rest, piece) {
            return;
        }
        piece.text.push_str(&self.stops.finish());
        piece.finish = Some(reason);
        let named = stop_token.filter(|token| self.rules.stop_token_ids.contains(token));
        piece.stop_reason = named.map(StopReason::Token);
    }
}

/// An ending that is none the client asked for.
fn refusal(output: &mut Output) -> Result<(), ApiError> {
    match output.finish {
        Finish::None | Finish::Stop | Finish::Length => Ok(()),
        Finish::Rejected => Err(ApiError::queue_full(1)),
        Finish::Cancelled => Err(ApiError::unavailable("The engine is shutting down.", 5)),
        Finish::Error => {
            let reason = output
                .error
                .take()
                .unwrap_or_else(|| "it gave no reason".to_owned());
            Err(ApiError::internal(format!(
                "The engine could not run the request: {reason}."
            )))
        }
    }
}
