//! A request that a replica has.

use std::sync::Arc;
use std::time::Duration;

use crate::live::Live;
use crate::shared::Shared;

/// How a request ended, as far as its replica is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Served,
    /// The client went away. Says nothing of the replica.
    ClientGone,
    /// Nothing of the request reached it.
    ConnectFailed,
    /// A status of 500 and above, or a broken stream.
    Failed,
    /// 429 or 503: it is alive and has no room.
    Refused,
}

/// A reservation: the request counts in every view until it ends. Dropped without an end, it ends
/// as [`Outcome::ClientGone`].
#[derive(Debug)]
pub struct InFlight {
    shared: Arc<Shared>,
    live: Arc<Live>,
    uncached: u64,
    prompt: u64,
    epoch: u32,
    began: Duration,
    first: Option<Duration>,
    tokens: u32,
    ended: bool,
}

impl InFlight {
    pub(crate) fn begin(shared: Arc<Shared>, live: Arc<Live>, uncached: f32, prompt: f32) -> Self {
        let (uncached, prompt) = (whole(uncached), whole(prompt));
        Self {
            epoch: live.begin(uncached, prompt),
            began: shared.now(),
            shared,
            live,
            uncached,
            prompt,
            first: None,
            tokens: 0,
            ended: false,
        }
    }

    /// The first output token came: the prompt has been computed. Only the first call counts.
    pub fn first_token(&mut self) {
        if self.first.is_none() {
            self.first = Some(self.shared.now());
            self.live.prefilled(self.uncached);
        }
    }

    /// Output tokens came, the first one included.
    pub fn tokens(&mut self, count: u32) {
        self.tokens = self.tokens.saturating_add(count);
    }

    pub fn end(mut self, outcome: Outcome) {
        self.finish(outcome);
    }

    fn finish(&mut self, _outcome: Outcome) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if self.first.is_none() {
            self.live.prefilled(self.uncached);
        }
        self.live.end(self.prompt, self.epoch);
        let _ = self.began;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.finish(Outcome::ClientGone);
    }
}

/// Whole tokens; nothing sensible is 0.
fn whole(tokens: f32) -> u64 {
    tokens.clamp(0.0, 1e9) as u64
}
