//! A request in flight at a replica, from its reservation to its outcome.

use std::sync::Arc;
use std::time::Duration;

use penstock_routing::ReplicaId;

use crate::eligibility::FULL;
use crate::member::Member;
use crate::outcome::Outcome;
use crate::prompts::Prompt;
use crate::shared::FleetState;
use crate::snapshot::Entry;

/// Minimum number of output tokens from which the time per token is measured.
const ENOUGH_TOKENS: u32 = 8;

/// A reservation: the request counts in every view of the fleet until it ends. A drop without a
/// call of `end` counts as [`Outcome::ClientGone`].
#[derive(Debug)]
pub struct InFlight {
    shared: Arc<FleetState>,
    member: Arc<Member>,
    id: ReplicaId,
    /// Tokens that the replica still had to compute when this request was sent.
    backlog: f32,
    /// The prompt's uncached tokens, which the replica must compute.
    prompt: Arc<Prompt>,
    prompt_tokens: u64,
    epoch: u32,
    /// Whether the request is the trial of a half-open circuit breaker.
    trial: bool,
    began: Duration,
    first: Option<First>,
    tokens: u32,
    ended: bool,
}

/// A failed request whose failure may be the replica's fault. A drop clears the replica of blame.
#[derive(Debug)]
pub struct Blame {
    shared: Arc<FleetState>,
    member: Arc<Member>,
    trial: bool,
}

impl Blame {
    /// Blames the replica.
    pub fn failed(self) {
        let (now, settings) = (self.shared.now(), &self.shared.settings);
        self.member.update(now, settings, |record| {
            record.saw_end(Outcome::Failed, self.trial, now, settings);
        });
    }
}

/// Time of the first token, and the number of running sequences at that time.
#[derive(Debug, Clone, Copy)]
struct First {
    at: Duration,
    sequences: f32,
}

impl InFlight {
    pub(crate) fn begin(
        shared: Arc<FleetState>,
        entry: &Entry,
        uncached_tokens: f32,
        prompt_tokens: f32,
    ) -> Self {
        let (now, member) = (shared.now(), entry.member.clone());
        let (uncached, prompt_tokens) = (whole(uncached_tokens), whole(prompt_tokens));
        let backlog = shared.load(entry).backlog_tokens;
        let epoch = member.live.begin(uncached, prompt_tokens);
        let prompt = Arc::new(Prompt::new(uncached));
        let seconds = (backlog + uncached as f32) / entry.pace.prefill_tokens_per_s;
        let expected = Duration::from_secs_f32(seconds.clamp(0.0, 3600.0));
        member.with(|record| record.prompts.push(prompt.clone(), now, expected));
        let trial = member.live.take_trial();
        if trial {
            member.update(now, &shared.settings, |record| {
                record.standing.trial_began()
            });
        }
        Self {
            shared,
            member,
            id: entry.id,
            backlog,
            prompt,
            prompt_tokens,
            epoch,
            trial,
            began: now,
            first: None,
            tokens: 0,
            ended: false,
        }
    }

    /// Records the first output token, which ends the prefill. Only the first call has an effect.
    /// Do not call it for a non-streamed response, whose first byte arrives with its last token.
    pub fn first_token(&mut self) {
        if self.first.is_some() {
            return;
        }
        let at = self.shared.now();
        self.computed();
        let sequences = self.sequences();
        self.first = Some(First { at, sequences });
        let tokens = self.backlog + self.prompt.uncached as f32;
        let seconds = at.saturating_sub(self.began).as_secs_f32();
        let trial = std::mem::take(&mut self.trial);
        self.member.update(at, &self.shared.settings, |record| {
            record.answers.saw_first_token(tokens, seconds);
            if trial {
                record.standing.served(true);
            }
        });
    }

    /// Adds `count` output tokens; the first token is one of them.
    pub fn tokens(&mut self, count: u32) {
        self.tokens = self.tokens.saturating_add(count);
        self.member.live.output(count);
    }

    /// Records the cause of the request's failure as the replica's last error.
    pub fn failed_by(&self, message: &str) {
        let now = self.shared.now();
        self.member.with(|record| record.saw_error(message, now));
    }

    /// Ends the request.
    pub fn end(mut self, outcome: Outcome) {
        self.finish(outcome);
    }

    /// Ends the request without a verdict on whether its failure was the replica's fault. Releases
    /// the reservation and the trial.
    pub fn end_unclear(mut self) -> Blame {
        self.finish(Outcome::Unclear);
        Blame {
            shared: self.shared.clone(),
            member: self.member.clone(),
            trial: self.trial,
        }
    }

    fn finish(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let (now, decode) = (self.shared.now(), self.decode());
        self.computed();
        self.member.live.end(self.prompt_tokens, self.epoch);
        if !matches!(outcome, Outcome::Served | Outcome::ClientGone) {
            self.member.live.failed();
        }
        if outcome == Outcome::Refused {
            self.member.live.refused(now + FULL);
        }
        let (trial, settings) = (self.trial, &self.shared.settings);
        self.member.update(now, settings, |record| {
            if let Some((sequences, seconds)) = decode {
                record.answers.saw_decode(sequences, seconds);
            }
            record.saw_end(outcome, trial, now, settings);
        });
        if outcome == Outcome::ConnectFailed {
            self.member.doubt.notify_one();
        }
    }

    fn computed(&self) {
        if self.prompt.compute() {
            self.member.live.prefilled(self.prompt.uncached);
        }
    }

    /// Mean number of running sequences during this request's decode, and seconds per output token;
    /// `None` after too few tokens.
    fn decode(&self) -> Option<(f32, f32)> {
        let first = self.first?;
        if self.tokens < ENOUGH_TOKENS {
            return None;
        }
        let seconds = self.shared.now().saturating_sub(first.at).as_secs_f32();
        let sequences = 0.5 * (first.sequences + self.sequences());
        Some((sequences, seconds / (self.tokens - 1) as f32))
    }

    /// Number of sequences that the replica is computing, including this one.
    fn sequences(&self) -> f32 {
        let snapshot = self.shared.snapshot();
        let entry = snapshot.entry(self.id);
        entry.map_or(1.0, |entry| self.shared.load(entry).running.max(1.0))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.finish(Outcome::ClientGone);
    }
}

/// Rounds down to whole tokens; NaN and negative values become 0.
fn whole(tokens: f32) -> u64 {
    tokens.clamp(0.0, 1e9) as u64
}
