//! Simulates continuous batching without running a model: makes the same decisions as Penstock's
//! scheduler (`penstock.scheduler`), step for step.
//!
//! Each step has a token budget. It is spent first on one token for each decoding sequence, then on
//! chunks of the prompts of running sequences, then on new sequences. In a step that decodes,
//! [`PromptBudget`] limits the number of prompt tokens, to bound the delay of decodes. A sequence
//! is admitted only with KV blocks for all tokens that it has. If a sequence needs a block and no
//! block is free, it preempts later arrivals, the last arrival first. Preempted sequences are
//! recomputed. A request waits while another request computes a prefix that both share.
//!
//! The simulation reads no clock: the caller passes the start time of each step, and
//! [`Batcher::schedule`] returns its duration.

#[cfg(test)]
mod devices;
mod kv;
mod pool;
#[cfg(test)]
mod properties;
mod sequence;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use penstock_pacing::PromptBudget;
use penstock_prefix::Digest;
use penstock_wire::{Finish, Output, Step, StepStats, TokenRequest};

use crate::answers::Answers;
use crate::profile::Profile;
use crate::timing::StepShape;
use kv::{Kv, PrefixLookup};
use sequence::{Bounds, Sequence};

/// A request to the engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Ask {
    pub(crate) request: TokenRequest,
    /// Natural length of the answer in tokens, if the engine draws no lengths.
    pub(crate) natural: Option<u32>,
    /// Length in tokens at which a fault ends the answer.
    pub(crate) early_stop: Option<u32>,
}

/// Remaining work of a request, exact, as input of the oracle policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inside {
    /// Number of known tokens that have no KV after the step in flight; 0 when decoding.
    pub(crate) prompt_left: usize,
    pub(crate) outputs_left: usize,
    /// Number of tokens that have KV after the step in flight.
    pub(crate) context: usize,
    pub(crate) waiting: bool,
}

/// State of the engine between and during steps. At most one step is in flight.
#[derive(Debug)]
pub(crate) struct Batcher {
    profile: Profile,
    answers: Answers,
    kv: Kv,
    /// Running sequences, in order of arrival.
    running: Vec<Sequence>,
    /// Waiting sequences, in order of arrival.
    waiting: VecDeque<Sequence>,
    outputs: Vec<Output>,
    arrivals: u64,
    in_flight: bool,
    prompts: PromptBudget,
    /// Fixed budget of prompt tokens in steps with decodes, in place of the learnt one.
    #[cfg(test)]
    fixed: Option<usize>,
    stats: StepStats,
}

impl Batcher {
    /// `profile` must be valid ([`Profile::complaint`]).
    pub(crate) fn new(profile: Profile, answers: Answers) -> Self {
        let stats = StepStats {
            blocks_total: profile.num_blocks,
            ..StepStats::default()
        };
        Self {
            kv: Kv::new(&profile),
            profile,
            answers,
            running: Vec::new(),
            waiting: VecDeque::new(),
            outputs: Vec::new(),
            arrivals: 0,
            in_flight: false,
            prompts: PromptBudget::default(),
            #[cfg(test)]
            fixed: None,
            stats,
        }
    }

    /// Queues a request, or answers it immediately with an error or a rejection. No other live
    /// request may have the same id.
    pub(crate) fn add(&mut self, id: u64, ask: Ask, now: Duration) {
        self.arrivals += 1;
        let refusal = self.refusal(&ask.request);
        let answer = self.answers.answer(&ask.request, ask.natural);
        let bounds = Bounds {
            max_model_len: self.profile.max_model_len as usize,
            eos: self.answers.eos,
            early_stop: ask.early_stop,
        };
        let mut seq = Sequence::new(id, self.arrivals, ask.request, answer, &bounds, now);
        if refusal.is_some() {
            self.outputs.push(seq.ended(Finish::Unfit, refusal));
        } else if self.live() >= (self.profile.max_num_seqs + self.profile.max_queue) as usize {
            self.outputs.push(seq.ended(Finish::Rejected, None));
        } else {
            self.waiting.push_back(seq);
        }
    }

    /// Cancels a request: immediately, or, if a step computes it, when that step is applied.
    /// Unknown ids are ignored.
    pub(crate) fn cancel(&mut self, id: u64) {
        if let Some(at) = self.waiting.iter().position(|seq| seq.id == id) {
            if let Some(mut seq) = self.waiting.remove(at) {
                self.outputs.push(seq.ended(Finish::Cancelled, None));
            }
        } else if let Some(at) = self.running.iter().position(|seq| seq.id == id) {
            if self.running[at].work > 0 {
                self.running[at].cancelled = true;
            } else {
                self.finish(at, Finish::Cancelled, None);
            }
        }
    }

    /// Cancels every request.
    pub(crate) fn cancel_all(&mut self) {
        let ids = self.running.iter().chain(&self.waiting).map(|seq| seq.id);
        for id in ids.collect::<Vec<_>>() {
            self.cancel(id);
        }
    }

    /// Number of requests that have neither ended nor been cancelled.
    fn live(&self) -> usize {
        let ended = |seq: &&Sequence| !seq.cancelled;
        self.waiting.len() + self.running.iter().filter(ended).count()
    }

    fn refusal(&self, request: &TokenRequest) -> Option<String> {
        let (prompt, profile) = (&request.prompt, &self.profile);
        if prompt.is_empty() {
            return Some("the prompt is empty".to_owned());
        }
        let longest = prompt.len() + usize::from(!request.pool);
        if longest > profile.max_model_len as usize {
            return Some(format!(
                "the prompt has {} tokens, the maximum model length is {}",
                prompt.len(),
                profile.max_model_len
            ));
        }
        if let Some(id) = prompt.iter().find(|id| **id >= profile.vocab_size) {
            return Some(format!(
                "the prompt holds token id {id}, the vocabulary has {}",
                profile.vocab_size
            ));
        }
        let needed = self.kv.blocks_for(longest);
        (needed > self.kv.pool.num_blocks()).then(|| self.too_large(needed))
    }

    fn too_large(&self, needed: usize) -> String {
        format!(
            "the request needs {needed} KV blocks of {} tokens, the pool has {}",
            self.profile.block_size, self.profile.num_blocks
        )
    }

    // Scheduling.

    /// Starts the next step at `now` and returns its duration; `None` if there is nothing to
    /// compute. The previous step must have been applied.
    pub(crate) fn schedule(&mut self, now: Duration) -> Option<Duration> {
        debug_assert!(!self.in_flight, "one step at a time");
        let mut budget = self.profile.max_num_batched_tokens as usize;
        let decodes = self.schedule_decodes();
        budget = self.prompt_budget(decodes, budget - decodes);
        budget -= self.schedule_chunks(budget);
        self.admit(budget, now);
        let shape = self.shape();
        if shape == StepShape::default() {
            return None;
        }
        self.in_flight = true;
        self.stats.step += 1;
        self.stats.batch_tokens = shape.decodes + shape.prompt_tokens;
        let seed = self.answers.seed;
        let cost = self.profile.timing.cost(&shape, seed, self.stats.step);
        self.stats.step_ms = cost.as_secs_f32() * 1e3;
        let seconds = cost.as_secs_f64();
        self.prompts
            .observe(shape.decodes, shape.prompt_tokens, seconds);
        Some(cost)
    }

    fn prompt_budget(&self, decodes: usize, most: usize) -> usize {
        #[cfg(test)]
        if let Some(fixed) = self.fixed {
            return if decodes > 0 { fixed.min(most) } else { most };
        }
        self.prompts.tokens(decodes as u32, most)
    }

    fn schedule_decodes(&mut self) -> usize {
        let (mut at, mut tokens) = (0, 0);
        while at < self.running.len() {
            if !self.running[at].decodes() {
                at += 1;
            } else if self.kv.has_room(&self.running[at]) || self.grow(at) {
                self.running[at].work = 1;
                tokens += 1;
                at += 1;
            } else if self.running_needs_too_much(at) {
                let needed = self.running[at].blocks.len() + 1;
                let message = self.too_large(needed);
                self.finish(at, Finish::Unfit, Some(message));
            } else {
                at += 1;
            }
        }
        tokens
    }

    /// Allocates a block for a running sequence, if necessary by preempting later arrivals. Returns
    /// false if no block is available, so that the sequence must skip this step.
    fn grow(&mut self, at: usize) -> bool {
        loop {
            if let Some(block) = self.kv.pool.take() {
                self.running[at].blocks.push(block);
                return true;
            }
            let idle = |seq: &Sequence| seq.work == 0;
            match self.running.iter().rposition(idle) {
                Some(victim) if victim > at => self.preempt(victim),
                _ => return false,
            }
        }
    }

    fn running_needs_too_much(&self, at: usize) -> bool {
        self.running[at].blocks.len() >= self.kv.pool.num_blocks()
    }

    fn schedule_chunks(&mut self, budget: usize) -> usize {
        let mut left = budget;
        for seq in &mut self.running {
            if left == 0 {
                break;
            }
            if seq.work == 0 && seq.remaining() > 1 {
                seq.work = seq.remaining().min(left);
                left -= seq.work;
            }
        }
        budget - left
    }

    /// Admits waiting sequences in order of arrival. A sequence that waits for a shared prefix to
    /// be computed by another one may be overtaken.
    fn admit(&mut self, mut budget: usize, now: Duration) {
        let mut at = 0;
        while at < self.waiting.len()
            && budget > 0
            && self.running.len() < self.profile.max_num_seqs as usize
        {
            let PrefixLookup::Blocks(hits) = self.kv.find(&mut self.waiting[at]) else {
                at += 1;
                continue;
            };
            let running = self.running.len();
            if !self.kv.enter(&mut self.waiting[at], &hits, running) {
                break;
            }
            let Some(mut seq) = self.waiting.remove(at) else {
                break;
            };
            seq.work = seq.remaining().min(budget);
            budget -= seq.work;
            self.count_entry(&mut seq, now);
            let place = self
                .running
                .partition_point(|other| other.order < seq.order);
            self.running.insert(place, seq);
        }
    }

    fn count_entry(&mut self, seq: &mut Sequence, now: Duration) {
        if seq.enter(now) && self.profile.prefix_caching && seq.reads_cache {
            self.stats.prefix_query_tokens_total += seq.tokens.len() as u64;
            self.stats.prefix_hit_tokens_total += seq.computed as u64;
        }
    }

    fn shape(&self) -> StepShape {
        let mut shape = StepShape::default();
        for seq in self.running.iter().filter(|seq| seq.work > 0) {
            let (work, context) = (seq.work as u64, seq.computed as u64);
            if work == 1 {
                shape.decodes += 1;
                shape.decode_context += context + 1;
            } else {
                shape.prompt_tokens += seq.work as u32;
                shape.prompt_context += work * context + work * (work + 1) / 2;
            }
        }
        shape
    }

    // Results.

    /// Ends the step in flight. Returns its outputs, and those of requests that have ended outside
    /// of a step since the last call.
    pub(crate) fn apply(&mut self) -> Step {
        self.in_flight = false;
        let mut at = 0;
        while at < self.running.len() {
            let (seq, kv) = (&mut self.running[at], &mut self.kv);
            let work = std::mem::take(&mut seq.work);
            seq.computed += work;
            kv.publish(seq);
            if seq.cancelled {
                self.finish(at, Finish::Cancelled, None);
            } else if work > 0 && seq.remaining() == 0 && seq.pool {
                let size = self.profile.vector_size;
                let mut output = seq.ended(Finish::Stop, None);
                output.vector = self.answers.vector(&seq.answer, size);
                self.outputs.push(output);
                self.remove(at);
            } else if work > 0 && seq.remaining() == 0 {
                let token = self.answers.token(&seq.answer, seq.next_number());
                let mut output = seq.advance(token);
                if let Some(count) = seq.logprobs {
                    output.logprobs.push(self.answers.logprobs(token, count));
                }
                if let Some(count) = seq.prompt_logprobs.take() {
                    let prompt = &seq.tokens[1..seq.prompt_len];
                    let rows = prompt.iter().map(|id| self.answers.logprobs(*id, count));
                    output.prompt_logprobs = rows.collect();
                }
                let ended = output.finish != Finish::None;
                self.outputs.push(output);
                if ended {
                    self.remove(at);
                } else {
                    at += 1;
                }
            } else {
                at += 1;
            }
        }
        self.take_step()
    }

    /// The outputs of requests that have ended outside of a step since the last call, as a step of
    /// zero tokens. Without outputs it is a heartbeat.
    pub(crate) fn idle_step(&mut self) -> Step {
        self.stats.batch_tokens = 0;
        self.stats.step_ms = 0.0;
        self.take_step()
    }

    fn take_step(&mut self) -> Step {
        Step {
            stats: self.stats(),
            outputs: std::mem::take(&mut self.outputs),
        }
    }

    /// The live requests: running ones first, then waiting ones, both in order of arrival.
    pub(crate) fn inside(&self) -> impl Iterator<Item = Inside> {
        let of = |seq: &Sequence, waiting| {
            let left = seq.remaining() - seq.work;
            let sampled = usize::from(seq.work > 0 && left == 0);
            Inside {
                prompt_left: if left > 1 || waiting { left } else { 0 },
                outputs_left: seq.outputs_left() - sampled.min(seq.outputs_left()),
                context: seq.computed + seq.work,
                waiting,
            }
        };
        let running = self.running.iter().map(move |seq| of(seq, false));
        running.chain(self.waiting.iter().map(move |seq| of(seq, true)))
    }

    /// The learnt budget of prompt tokens in steps with decodes.
    pub(crate) fn prompts(&self) -> &PromptBudget {
        &self.prompts
    }

    /// Digests of a prompt's full blocks, without a cache salt. Equal engines give equal digests.
    pub(crate) fn names(&self, prompt: &[u32]) -> Vec<Digest> {
        self.kv.names(&[], prompt)
    }

    /// Number of tokens of a prompt, whose blocks have the digests `names`, that need not be
    /// computed.
    pub(crate) fn cached(&self, names: &[Digest], prompt_len: usize) -> usize {
        self.kv.cached(names, prompt_len)
    }

    /// Adds an output for a request that the batcher no longer has; the next step returns it.
    pub(crate) fn answer(&mut self, output: Output) {
        self.outputs.push(output);
    }

    /// Whether outputs wait to be returned.
    pub(crate) fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Whether there are no live requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The current counters of the engine.
    pub(crate) fn stats(&self) -> StepStats {
        let free = self.kv.pool.available() as u32;
        StepStats {
            running: self.running.len() as u32,
            waiting: self.waiting.len() as u32,
            blocks_used: self.profile.num_blocks - free,
            ..self.stats
        }
    }

    // Preemption and removal.

    /// Moves a running sequence back to the queue. It keeps its tokens and loses its KV.
    fn preempt(&mut self, at: usize) {
        self.stats.preemptions_total += 1;
        let mut seq = self.running.remove(at);
        self.kv.vacate(&mut seq);
        seq.computed = 0;
        let place = self
            .waiting
            .partition_point(|other| other.order < seq.order);
        self.waiting.insert(place, seq);
    }

    fn finish(&mut self, at: usize, finish: Finish, error: Option<String>) {
        let output = self.running[at].ended(finish, error);
        self.outputs.push(output);
        self.remove(at);
    }

    fn remove(&mut self, at: usize) {
        let mut seq = self.running.remove(at);
        self.kv.vacate(&mut seq);
    }

    /// Describes the first inconsistency of the bookkeeping, if there is one. Takes time linear in
    /// the blocks: for tests.
    pub(crate) fn fault(&self) -> Option<String> {
        let tables = self.running.iter().map(|seq| seq.blocks.as_slice());
        let limit = self.profile.max_num_seqs as usize;
        (self.running.len() > limit)
            .then(|| format!("{} sequences run", self.running.len()))
            .or_else(|| self.kv.pool.fault(tables))
    }
}
