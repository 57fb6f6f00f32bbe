//! A policy with complete knowledge of each replica's queue and cache and of the lengths of all
//! answers. It simulates each choice to its end as if no further requests arrived, and selects the
//! one with the lowest cost: the new request's time to first token, plus its time to its end, plus
//! the delay of other requests.
//!
//! The policy is greedy: it ignores later arrivals, and cached blocks that its choice evicts. It is
//! therefore a baseline, not an upper bound.

use std::time::Duration;

use penstock_pacing::PromptBudget;

use crate::batching::Inside;
use crate::profile::Profile;
use crate::timing::StepShape;

/// Predicted outcome of a request on one replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Outlook {
    /// Seconds until its first token.
    pub(super) first: f64,
    /// Seconds until its end.
    pub(super) end: f64,
    /// Sum of the delays, in seconds, that it adds to the ends of other requests.
    pub(super) others: f64,
}

/// Index of the outlook with the least cost.
pub(super) fn best(outlooks: &[Outlook]) -> usize {
    let cost = |at: &usize| outlooks[*at].first + outlooks[*at].end + outlooks[*at].others;
    let least = (0..outlooks.len()).min_by(|a, b| cost(a).total_cmp(&cost(b)));
    least.unwrap_or(0)
}

/// Simulates the requests `inside` a replica with and without `newcomer`. The first step starts
/// after `begins` seconds.
pub(super) fn outlook(
    profile: &Profile,
    prompts: &PromptBudget,
    inside: &[Inside],
    newcomer: Inside,
    begins: f64,
) -> Outlook {
    let without = play(profile, prompts.clone(), inside, begins);
    let with = play(
        profile,
        prompts.clone(),
        &[inside, &[newcomer]].concat(),
        begins,
    );
    let others = with.iter().zip(&without).map(|(a, b)| a.end - b.end).sum();
    let own = with[inside.len()];
    Outlook {
        first: own.first,
        end: own.end,
        others,
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Times {
    first: f64,
    end: f64,
}

/// Simulates steps as the batcher makes them, but without blocks; equal consecutive steps that only
/// decode are computed as one.
fn play(
    profile: &Profile,
    mut prompts: PromptBudget,
    inside: &[Inside],
    begins: f64,
) -> Vec<Times> {
    let mut left: Vec<(usize, Inside)> = inside.iter().copied().enumerate().collect();
    left.retain(|(_, one)| one.prompt_left + one.outputs_left > 0);
    let mut times = vec![Times::default(); inside.len()];
    let mut now = begins;
    while !left.is_empty() {
        admit(profile, &mut left);
        let work = works(profile, &prompts, &left);
        let decodes = |(one, work): (&(usize, Inside), &usize)| {
            (!one.1.waiting && *work == 0 && one.1.prompt_left == 0).then_some(one.1)
        };
        let decoding: Vec<Inside> = left.iter().zip(&work).filter_map(decodes).collect();
        // Steps are not merged while prompts wait: these get tokens once the cost of the decodes
        // alone is known.
        let in_turn = left
            .iter()
            .any(|(_, one)| !one.waiting && one.prompt_left > 0);
        let shortest = decoding.iter().map(|one| one.outputs_left).min();
        let steps = if in_turn {
            1
        } else {
            shortest.unwrap_or(1).max(1)
        };
        let took = step(profile, &left, &work, &decoding, steps);
        let tokens: usize = work.iter().sum();
        prompts.observe(decoding.len() as u32, tokens as u32, took.as_secs_f64());
        now += steps as f64 * took.as_secs_f64();
        for ((id, one), work) in left.iter_mut().zip(work) {
            if one.waiting {
                continue;
            }
            if one.prompt_left == 0 {
                one.context += steps;
                one.outputs_left = one.outputs_left.saturating_sub(steps);
            } else if work > 0 {
                one.context += work;
                one.prompt_left -= work;
                if one.prompt_left == 0 {
                    times[*id].first = now;
                    one.outputs_left = one.outputs_left.saturating_sub(1);
                }
            }
            if one.prompt_left == 0 && one.outputs_left == 0 {
                times[*id].end = now;
            }
        }
        left.retain(|(_, one)| one.prompt_left + one.outputs_left > 0);
    }
    times
}

/// Admits waiting requests in order, as long as there are slots and KV tokens for them.
fn admit(profile: &Profile, left: &mut [(usize, Inside)]) {
    let known = |one: &Inside| one.context + one.prompt_left;
    let running = left.iter().filter(|(_, one)| !one.waiting);
    let mut slots = (profile.max_num_seqs as usize).saturating_sub(running.clone().count());
    let used: usize = running.map(|(_, one)| known(one)).sum();
    let pool = profile.num_blocks as usize * profile.block_size as usize;
    let mut room = pool.saturating_sub(used);
    let mut alone = used == 0;
    for (_, one) in left.iter_mut().filter(|(_, one)| one.waiting) {
        if slots == 0 || (known(one) > room && !alone) {
            break;
        }
        one.waiting = false;
        alone = false;
        slots -= 1;
        room = room.saturating_sub(known(one));
    }
}

/// Number of prompt tokens of each request that the next step computes.
fn works(profile: &Profile, prompts: &PromptBudget, left: &[(usize, Inside)]) -> Vec<usize> {
    let decodes = left
        .iter()
        .filter(|(_, one)| !one.waiting && one.prompt_left == 0)
        .count();
    let budget = (profile.max_num_batched_tokens as usize).saturating_sub(decodes);
    let mut budget = prompts.tokens(decodes as u32, budget);
    let work = left.iter().map(|(_, one)| {
        let work = if one.waiting { 0 } else { one.prompt_left };
        let work = work.min(budget);
        budget -= work;
        work
    });
    work.collect()
}

/// Duration of one step, of `steps` equal ones.
fn step(
    profile: &Profile,
    left: &[(usize, Inside)],
    work: &[usize],
    decoding: &[Inside],
    steps: usize,
) -> Duration {
    let mut shape = StepShape {
        decodes: decoding.len() as u32,
        decode_context: decoding
            .iter()
            .map(|one| (one.context + steps / 2) as u64)
            .sum(),
        ..StepShape::default()
    };
    for ((_, one), work) in left.iter().zip(work) {
        let (work, context) = (*work as u64, one.context as u64);
        shape.prompt_tokens += work as u32;
        shape.prompt_context += work * context + work * (work + 1) / 2;
    }
    profile.timing.cost(&shape, 0, 0)
}
