//! All engine requests of one client request.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use penstock_openai::ApiError;
use penstock_openai::{CachedByTier, Usage};
use penstock_wire::{TierKinds, TierTokens};

use crate::admission::Seat;
use crate::generation::{Generation, Piece};

/// The choices of a request, by index. Dropping them cancels what still runs at the engine and
/// frees the seats.
pub(crate) struct Choices {
    generations: Vec<Generation>,
    /// Where the next look for events starts, so that no choice starves the others.
    turn: usize,
    /// `Some` when usage says which tiers cached tokens came from.
    tiers: Option<TierKinds>,
    _seat: Seat,
}

impl Choices {
    /// `tiers` are named in the usage; `None`: none are.
    pub(crate) fn new(generations: Vec<Generation>, tiers: Option<TierKinds>, seat: Seat) -> Self {
        Self {
            generations,
            turn: 0,
            tiers,
            _seat: seat,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.generations.len()
    }

    /// The next piece of any choice with its index; `None` when all have ended. Safe to drop and
    /// call again.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Piece), ApiError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`Self::next`] as a poll.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<(usize, Piece), ApiError>>> {
        let count = self.generations.len();
        let mut open = false;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let generation = &mut self.generations[index];
            if generation.finished() {
                continue;
            }
            open = true;
            if let Poll::Ready(piece) = pin!(generation.next()).poll(cx) {
                self.turn = index + 1;
                return Poll::Ready(Some(piece.map(|piece| (index, piece))));
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
        self.usage_over(&self.generations)
    }

    /// Tokens so far of one choice.
    pub(crate) fn usage_of(&self, index: usize) -> Usage {
        self.usage_over(&self.generations[index..=index])
    }

    fn usage_over(&self, generations: &[Generation]) -> Usage {
        let mut usage = Usage::default();
        let mut tiers = TierTokens::default();
        for generation in generations {
            usage.prompt_tokens += generation.prompt_tokens();
            usage.completion_tokens += generation.generated();
            usage.cached_tokens += generation.cached_tokens();
            let more = generation.tier_tokens();
            tiers.ram += more.ram;
            tiers.disk += more.disk;
            tiers.remote += more.remote;
        }
        usage.cached_by_tier = self
            .tiers
            .map(|kinds| cached_by_tier(usage.cached_tokens, tiers, kinds));
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
