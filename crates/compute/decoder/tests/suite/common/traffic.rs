//! Random traffic on one decoder: reuse of slots and blocks, incremental block tables, drafts,
//! tokens known only to the decoder, overlapping plans.

use std::collections::VecDeque;

use penstock_decoder::{Options, StepFuture};
use penstock_wire::{LAST_SAMPLED, StepPlan, StepResult};

use super::{Answer, BLOCKS, Compute, Request, Rng, registration};

/// Variations of the traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    /// Drafts, correct or wrong at random.
    pub(crate) drafts: bool,
    /// Plans in flight; with more than one, sampled tokens are not known in time.
    pub(crate) depth: usize,
    /// Send block tables as updates instead of whole.
    pub(crate) deltas: bool,
    /// Maximum prompt tokens per step.
    pub(crate) chunk: usize,
}

const SLOTS: usize = 5;
/// NaN in f32 and in bf16.
const NAN: u8 = 0xff;
/// Large finite numbers in f32 and in bf16.
const LARGE: u8 = 0x7f;

/// A sequence with a slot.
struct Live {
    request: usize,
    slot: usize,
    registered: bool,
    tokens: Vec<i32>,
    /// Positions in plans.
    scheduled: usize,
    /// Positions whose plans have ended.
    computed: usize,
    /// A sampled token is in flight.
    sampling: bool,
    /// Drafts are in flight.
    drafting: bool,
    /// Block tables by KV group; the decoder has received `sent` entries of each.
    tables: Vec<Vec<i32>>,
    sent: usize,
}

/// A plan's work for one sequence.
struct Part {
    request: usize,
    end: usize,
    drafts: usize,
}

struct Flight {
    parts: Vec<Part>,
    futures: Vec<StepFuture>,
}

/// The traffic of some requests. `right` are their expected answers, the source of drafts.
pub(crate) struct Traffic<'a, C: Compute> {
    pub(crate) decoder: &'a C,
    pub(crate) options: &'a Options,
    pub(crate) requests: &'a [Request],
    pub(crate) right: &'a [Answer],
    pub(crate) style: Style,
    pub(crate) rng: Rng,
}

impl<C: Compute> Traffic<'_, C> {
    pub(crate) fn run(mut self) -> Vec<Answer> {
        let groups = self.decoder.seen().len();
        let mut free: Vec<Vec<i32>> = vec![(0..BLOCKS as i32).collect(); groups];
        for (group, free) in free.iter().enumerate() {
            free.iter().for_each(|&block| self.ruin(group, block));
        }
        let mut answers = vec![Answer::default(); self.requests.len()];
        let mut waiting: VecDeque<usize> = (0..self.requests.len()).collect();
        let mut slots: Vec<usize> = (0..SLOTS).collect();
        let (mut live, mut flights) = (Vec::<Live>::new(), VecDeque::<Flight>::new());
        loop {
            while !waiting.is_empty() && !slots.is_empty() && self.rng.below(3) > 0 {
                let slot = slots.swap_remove(self.rng.below(slots.len()));
                let request = waiting.pop_front().unwrap();
                live.push(self.admit(request, slot, &answers[request], groups));
            }
            let (plan, parts) = self.plan(&mut live, &answers, &mut free);
            let planned = !parts.is_empty();
            if planned {
                let futures = self.decoder.submit(plan);
                flights.push_back(Flight { parts, futures });
            }
            if flights.len() >= self.style.depth || !planned && !flights.is_empty() {
                let flight = flights.pop_front().unwrap();
                let result = self.decoder.finish(flight.futures).unwrap();
                take(&flight.parts, result, &mut live, &mut answers);
                self.give_back(&mut live, &mut free);
            }
            let ended =
                |l: &Live| answers[l.request].tokens.len() == self.requests[l.request].new_tokens;
            for i in (0..live.len()).rev() {
                let idle = live[i].scheduled == live[i].computed;
                let preempted = idle && live[i].computed > 0 && self.rng.below(40) == 0;
                if idle && (ended(&live[i]) || preempted) {
                    let left = live.swap_remove(i);
                    slots.push(left.slot);
                    self.release(left.tables, &mut free);
                    if answers[left.request].tokens.len() < self.requests[left.request].new_tokens {
                        waiting.push_back(left.request);
                    }
                }
            }
            if live.is_empty() && waiting.is_empty() {
                return answers;
            }
        }
    }

    /// A new sequence, or a preempted one that restarts with its sampled tokens.
    fn admit(&self, request: usize, slot: usize, answer: &Answer, groups: usize) -> Live {
        let prompt = &self.requests[request].prompt;
        Live {
            request,
            slot,
            registered: false,
            tokens: prompt.iter().chain(&answer.tokens).copied().collect(),
            scheduled: 0,
            computed: 0,
            sampling: false,
            drafting: false,
            tables: vec![vec![]; groups],
            sent: 0,
        }
    }

    fn plan(
        &mut self,
        live: &mut [Live],
        answers: &[Answer],
        free: &mut [Vec<i32>],
    ) -> (StepPlan, Vec<Part>) {
        let (mut parts, mut plan) = (Vec::new(), StepPlan::default());
        plan.added_offsets.push(0);
        for l in live {
            let request = &self.requests[l.request];
            let left =
                request.new_tokens - answers[l.request].tokens.len() - usize::from(l.sampling);
            let known = l.tokens.len() + usize::from(l.sampling);
            if left == 0 || l.drafting || l.scheduled == known || self.rng.below(4) == 0 {
                continue;
            }
            let chunk = (known - l.scheduled).min(1 + self.rng.below(self.style.chunk));
            let samples = l.scheduled + chunk == known;
            let mut tokens: Vec<i32> = (l.scheduled..l.scheduled + chunk)
                .map(|p| l.tokens.get(p).copied().unwrap_or(LAST_SAMPLED))
                .collect();
            let drafts = if samples && self.style.drafts {
                self.rng.below(left.min(5))
            } else {
                0
            };
            for i in 0..drafts {
                let right = self.right[l.request].tokens[known - request.prompt.len() + i];
                let wrong = self.rng.below(4) == 0;
                tokens.push(if wrong {
                    self.rng.below(256) as i32
                } else {
                    right
                });
            }
            let end = l.scheduled + tokens.len();
            self.add(&mut plan, l, request, &answers[l.request], &tokens);
            plan.sample.push(i8::from(samples));
            plan.drafts.push(drafts as i32);
            self.add_blocks(&mut plan, l, end.div_ceil(self.options.block_size), free);
            (l.scheduled, l.sampling, l.drafting) = (end, samples, drafts > 0);
            let request = l.request;
            parts.push(Part {
                request,
                end,
                drafts,
            });
        }
        if plan.targets.iter().all(|&t| t == -1) {
            plan.targets.clear();
        }
        if plan.drafts.iter().all(|&d| d == 0) {
            plan.drafts.clear();
        }
        (plan, parts)
    }

    fn add(
        &self,
        plan: &mut StepPlan,
        l: &mut Live,
        request: &Request,
        answer: &Answer,
        tokens: &[i32],
    ) {
        let again = !answer.tokens.is_empty() || answer.prompt.len() + 1 == request.prompt.len();
        if !l.registered {
            let mut r = registration(l.slot, request.sampling.clone(), Some(request.logprobs));
            if again {
                r.prompt_logprobs = -1;
            }
            plan.registrations.push(r);
            l.registered = true;
        }
        plan.slots.push(l.slot as i32);
        plan.starts.push(l.scheduled as i32);
        plan.lengths.push(tokens.len() as i32);
        plan.tokens.extend(tokens);
        let scored = answer.prompt.len() + 1;
        let target = |p: usize| match request.prompt.get(p) {
            Some(&token) if p >= scored => token,
            _ => -1,
        };
        plan.targets
            .extend((l.scheduled + 1..=l.scheduled + tokens.len()).map(target));
    }

    fn add_blocks(&mut self, plan: &mut StepPlan, l: &mut Live, end: usize, free: &mut [Vec<i32>]) {
        // Entries that the decoder already has may be sent again.
        let kept = if self.style.deltas {
            l.sent.min(end) - self.rng.below(3).min(l.sent.min(end))
        } else {
            0
        };
        for (table, free) in l.tables.iter_mut().zip(free) {
            while table.len() < end {
                table.push(free.swap_remove(self.rng.below(free.len())));
            }
            plan.kept.push(kept as i32);
            plan.added.extend(&table[kept..end]);
            plan.added_offsets.push(plan.added.len() as i32);
        }
        l.sent = end;
    }

    /// Frees the blocks that no later token attends to.
    fn give_back(&mut self, live: &mut [Live], free: &mut [Vec<i32>]) {
        for (group, seen) in self.decoder.seen().into_iter().enumerate() {
            for l in live.iter_mut() {
                let behind = seen.first(l.computed) / self.options.block_size;
                let behind = behind.min(l.tables[group].len());
                for entry in &mut l.tables[group][..behind] {
                    let block = std::mem::replace(entry, -1);
                    if block != -1 {
                        self.ruin(group, block);
                        free[group].push(block);
                    }
                }
            }
        }
    }

    fn release(&self, tables: Vec<Vec<i32>>, free: &mut [Vec<i32>]) {
        for (group, table) in tables.into_iter().enumerate() {
            for block in table.into_iter().filter(|&b| b != -1) {
                self.ruin(group, block);
                free[group].push(block);
            }
        }
    }

    /// Overwrites a block that no step accesses.
    fn ruin(&self, group: usize, block: i32) {
        for decoder in self.decoder.decoders() {
            let pool = &decoder.pools()[group];
            // Padding numbers of a head are zero or finite, after any writer of the block.
            let padded = !decoder.info().kv.layout.head_dim.is_multiple_of(16);
            let mut block = pool.write(block as usize);
            let block = block.as_mut().expect("no step sees the block");
            block.fill(if padded { LARGE } else { NAN });
        }
    }
}

/// Applies the result of a plan.
fn take(parts: &[Part], result: StepResult, live: &mut [Live], answers: &mut [Answer]) {
    let mut tokens = result.tokens.into_iter();
    for (part, &count) in parts.iter().zip(&result.counts) {
        let count = count as usize;
        let l = live.iter_mut().find(|l| l.request == part.request).unwrap();
        let sampled: Vec<i32> = tokens.by_ref().take(count).collect();
        l.computed = part.end;
        if count > 0 {
            // Rejected drafts are computed again.
            l.computed -= part.drafts + 1 - count;
            if part.drafts > 0 {
                l.scheduled = l.computed;
                l.drafting = false;
            }
            // A later plan may already sample.
            l.sampling = l.scheduled > l.computed;
        }
        l.tokens.extend(&sampled);
        answers[part.request].tokens.extend(sampled);
    }
    assert_eq!(tokens.next(), None);
    for (index, rows) in result.logprobs {
        answers[parts[index as usize].request].logprobs.extend(rows);
    }
    for (index, rows) in result.prompt_logprobs {
        answers[parts[index as usize].request].prompt.extend(rows);
    }
}
