//! All engine requests of one client request.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};

use penstock_protocol::ApiError;
use penstock_protocol::openai::Usage;

use crate::admission::Seat;
use crate::generation::{Generation, Piece};

/// The choices of a request, by index. Dropping them cancels what still runs at the engine and frees the seats.
pub(crate) struct Choices {
    generations: Vec<Generation>,
    /// Where the next look for events starts, so that no choice starves the others.
    turn: usize,
    _seat: Seat,
}

impl Choices {
    pub(crate) fn new(generations: Vec<Generation>, seat: Seat) -> Self {
        Self {
            generations,
            turn: 0,
            _seat: seat,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.generations.len()
    }

    /// The next piece of any choice with its index; `None` when all have ended. Safe to drop and call again.
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
        self.generations
            .iter()
            .fold(Usage::default(), |usage, g| Usage {
                prompt_tokens: usage.prompt_tokens + g.prompt_tokens(),
                completion_tokens: usage.completion_tokens + g.generated(),
                cached_tokens: usage.cached_tokens + g.cached_tokens(),
            })
    }

    /// Tokens so far of one choice.
    pub(crate) fn usage_of(&self, index: usize) -> Usage {
        let generation = &self.generations[index];
        Usage {
            prompt_tokens: generation.prompt_tokens(),
            completion_tokens: generation.generated(),
            cached_tokens: generation.cached_tokens(),
        }
    }
}
