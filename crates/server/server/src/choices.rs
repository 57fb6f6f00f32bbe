//! The choices of one client request, and their usage.

use std::task::{Context, Poll};

use penstock_api_types::{ApiError, CachedByTier, Usage};
use penstock_wire::{LogprobRow, Output, TierKinds, TierTokens};

use crate::choice::Choice;
use crate::delta::OutputDelta;
use crate::marks::Marks;

/// The choices of a request, by index. Dropping them cancels the choices in flight at the engine.
pub(crate) struct ChoiceStreams {
    choices: Vec<Choice>,
    /// Index of the choice to poll first: round robin, so that no choice starves another.
    turn: usize,
    /// `Some` if the usage splits cached tokens by tier.
    tiers: Option<TierKinds>,
    /// Deltas that another server has already sent, one per step.
    pub(crate) replayed: Vec<OutputDelta>,
    /// `Some` if the stream carries resume marks.
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

    /// Replays the steps of an interrupted stream, which has one choice.
    ///
    /// # Errors
    /// The output already ends within `steps`.
    pub(crate) fn replay(&mut self, steps: &[Vec<u32>], scored: bool) -> Result<(), ApiError> {
        let Some(choice) = self.choices.first_mut() else {
            return Ok(());
        };
        for step in steps {
            let delta = choice.detokenize(sent(step, scored));
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

    /// The next delta of any choice, with its index; `None` after all have ended. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, OutputDelta), ApiError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The poll function of [`Self::next`].
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

    /// Token counts so far, summed over all choices.
    pub(crate) fn usage(&self) -> Usage {
        self.usage_over(&self.choices)
    }

    /// Token counts so far of one choice.
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

/// Splits `cached` by tier. `tokens` came from tiers behind the pool; their total is clamped to
/// `cached`.
fn cached_by_tier(cached: u32, tokens: TierTokens, kinds: TierKinds) -> CachedByTier {
    let behind = tokens.total().min(cached.into()) as u32;
    CachedByTier {
        pool: cached - behind,
        ram: kinds.ram.then_some(tokens.ram),
        disk: kinds.disk.then_some(tokens.disk),
        remote: kinds.remote.then_some(tokens.remote),
    }
}

/// The output of a step that another server has already sent. Its log-probabilities are unknown;
/// with `scored`, each token gets a placeholder row.
fn sent(tokens: &[u32], scored: bool) -> Output {
    let row = LogprobRow {
        logprob: 0.0,
        rank: 1,
        alternatives: Vec::new(),
    };
    Output {
        tokens: tokens.to_vec(),
        logprobs: vec![row; if scored { tokens.len() } else { 0 }],
        ..Output::default()
    }
}
