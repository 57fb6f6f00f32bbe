//! Output deltas of a choice.

use penstock_api_types::{FinishReason, StopReason};
use penstock_output_parsers::OutputEvent;
use penstock_wire::LogprobRow;

/// Output that one or more engine steps added to a choice.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct OutputDelta {
    /// New text: whole characters, without a suffix that may become a stop string. Empty if the
    /// text is parsed into `events`.
    pub(crate) text: String,
    /// Events parsed from the text, if the choice has a parser.
    pub(crate) events: Vec<OutputEvent>,
    /// All tokens, including a stop token without text.
    pub(crate) tokens: Vec<u32>,
    /// One row per token of `tokens`, or empty.
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
