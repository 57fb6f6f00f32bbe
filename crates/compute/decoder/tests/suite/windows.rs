//! Sliding windows and chunks: blocks that no later token attends to are freed and reused, and
//! answers stay bit for bit equal.

use crate::common;
use std::collections::VecDeque;

use crate::common::ranks::{Cuts, load_ranks};
use crate::common::{
    Answer, BLOCKS, Compute, GREEDY, Request, Rng, allocated, isas, load, load_only, options,
    reference, registration, run, spec,
};
use penstock_decoder::{Decoder, DecoderSpec, Options};
use penstock_kernels::{AttentionMask, Isa};
use penstock_wire::{StepPlan, StepResult};

const CHUNK: usize = 40;

/// A sequence whose windowed groups hold only the blocks that its next token attends to.
struct Windowed {
    tokens: Vec<i32>,
    computed: usize,
    /// For each group, the attention mask and the block table; -1 = freed.
    groups: Vec<(AttentionMask, Vec<i32>)>,
    sampled: Vec<i32>,
}

impl Windowed {
    fn new(prompt: &[i32], groups: &[AttentionMask]) -> Self {
        let groups = groups.iter().map(|&seen| (seen, Vec::new())).collect();
        Self {
            tokens: prompt.to_vec(),
            computed: 0,
            groups,
            sampled: Vec::new(),
        }
    }

    /// Adds the next `length` tokens to the plan, with new blocks from each group's free list.
    fn add(&mut self, slot: usize, length: usize, free: &mut [VecDeque<i32>], plan: &mut StepPlan) {
        if self.computed == 0 {
            plan.registrations.push(registration(slot, GREEDY, None));
        }
        let end = self.tokens.len().min(self.computed + length);
        plan.slots.push(slot as i32);
        plan.starts.push(self.computed as i32);
        plan.lengths.push((end - self.computed) as i32);
        plan.tokens.extend(&self.tokens[self.computed..end]);
        plan.sample.push(i8::from(end == self.tokens.len()));
        for ((_, table), free) in self.groups.iter_mut().zip(free) {
            while table.len() * 16 < end {
                table.push(free.pop_front().expect("the pool holds window and step"));
            }
            plan.kept.push(0);
            plan.added.extend(&*table);
            plan.added_offsets.push(plan.added.len() as i32);
        }
        self.computed = end;
    }

    /// Frees the blocks that no later token attends to; other sequences reuse them at once.
    fn trim(&mut self, free: &mut [VecDeque<i32>]) {
        for ((seen, table), free) in self.groups.iter_mut().zip(free) {
            let behind = seen.first(self.computed) / 16;
            for entry in table[..behind].iter_mut().filter(|entry| **entry != -1) {
                free.push_front(std::mem::replace(entry, -1));
            }
        }
    }
}

/// Greedy answers of `prompts` computed together, and the peak of blocks in use in each group.
fn answers(
    decoder: &impl Compute,
    groups: &[AttentionMask],
    blocks: &[usize],
    prompts: &[(Vec<i32>, usize)],
    mut chunk: impl FnMut() -> usize,
) -> Vec<Vec<i32>> {
    let mut free: Vec<VecDeque<i32>> = blocks.iter().map(|&n| (0..n as i32).collect()).collect();
    let mut sequences: Vec<Windowed> = prompts
        .iter()
        .map(|(prompt, _)| Windowed::new(prompt, groups))
        .collect();
    loop {
        let mut plan = StepPlan {
            added_offsets: vec![0],
            ..StepPlan::default()
        };
        for (slot, sequence) in sequences.iter_mut().enumerate() {
            if sequence.sampled.len() < prompts[slot].1 {
                sequence.add(slot, chunk(), &mut free, &mut plan);
            }
        }
        if plan.slots.is_empty() {
            return sequences.into_iter().map(|s| s.sampled).collect();
        }
        let StepResult { counts, tokens, .. } = decoder.compute(plan.clone()).unwrap();
        let mut tokens = tokens.into_iter();
        for (&slot, count) in plan.slots.iter().zip(counts) {
            let sequence = &mut sequences[slot as usize];
            for token in tokens.by_ref().take(count as usize) {
                sequence.tokens.push(token);
                sequence.sampled.push(token);
            }
            sequence.trim(&mut free);
        }
    }
}

/// Blocks for `sequences` sequences of 256 tokens: with a window or chunk, bounded by it and a
/// step, for any length.
fn bounded(groups: &[AttentionMask], sequences: usize) -> Vec<usize> {
    let each = |seen: &AttentionMask| match seen {
        AttentionMask::Window(most) | AttentionMask::Chunk(most) => (most + CHUNK).div_ceil(16) + 1,
        AttentionMask::All => 16,
    };
    groups.iter().map(|seen| sequences * each(seen)).collect()
}

/// Answers of the simple scheduler, which keeps every block.
fn whole(decoder: &impl Compute, options: &Options, prompts: &[(Vec<i32>, usize)]) -> Vec<Answer> {
    let requests: Vec<Request> = prompts
        .iter()
        .map(|(prompt, new_tokens)| Request {
            prompt: prompt.clone(),
            new_tokens: *new_tokens,
            sampling: GREEDY,
            logprobs: 0,
        })
        .collect();
    run(decoder, options, &requests, || 1000)
}

fn prompts(family: &str, longest: usize) -> Vec<(Vec<i32>, usize)> {
    let reference = reference(family);
    let count = longest - reference.tokens.len();
    let rest = reference.tokens.iter().rev().copied().collect();
    vec![(reference.tokens, count), (rest, count / 2)]
}

#[test]
fn given_back_blocks_change_no_answer() {
    for isa in isas() {
        for (family, longest) in [
            ("alternating", 256),
            ("qwen2", 128),
            ("mistral", 128),
            ("gptoss", 128),
            ("gemma2", 256),
            ("gemma3", 256),
            ("llama4", 256),
        ] {
            let options = options(isa);
            let prompts = prompts(family, longest);
            let tokens = |a: &Answer| a.tokens.clone();
            let want: Vec<_> = whole(&load(family, &options), &options, &prompts)
                .iter()
                .map(tokens)
                .collect();
            let reference = reference(family);
            assert_eq!(want[0][..reference.greedy.len()], reference.greedy);
            let decoder = load_only(family, &options);
            let groups = decoder.seen();
            assert!(
                groups.iter().any(|&seen| seen != AttentionMask::All),
                "{family}"
            );
            let blocks = bounded(&groups, prompts.len());
            decoder.allocate(&blocks).unwrap();
            for seed in 0..3 {
                let mut sizes = Rng(seed);
                let got = answers(&decoder, &groups, &blocks, &prompts, || {
                    1 + sizes.below(CHUNK)
                });
                assert_eq!(got, want, "{family} on {isa}, seed {seed}");
            }
        }
    }
}

#[test]
fn ranks_give_back_the_same_blocks() {
    for (family, longest) in [("alternating", 256), ("gptoss", 128), ("llama4", 256)] {
        ranks_give_back(family, longest);
    }
}

fn ranks_give_back(family: &str, longest: usize) {
    let set = options(Isa::detect());
    let spec = DecoderSpec::parse(&spec(family).0.to_string()).unwrap();
    let prompts = prompts(family, longest);
    let groups = load(family, &set).seen();
    // Some stages have layers of one group only, so a rank may have no layers in a group.
    for (tp, pp) in [(2, 1), (1, 4), (2, 4)] {
        let pp = pp.min(spec.depth());
        let ranks = load_ranks(family, &set, &Cuts::even(&spec, tp, pp));
        let want = whole(&ranks, &set, &prompts);
        let mut sizes = Rng(7);
        let blocks = vec![BLOCKS; groups.len()];
        let got = answers(&ranks, &groups, &blocks, &prompts, || {
            1 + sizes.below(CHUNK)
        });
        for (got, want) in got.iter().zip(&want) {
            assert_eq!(*got, want.tokens, "tp={tp} pp={pp}");
        }
    }
}

/// The fixture's window matters: without it the answer differs.
#[test]
fn the_window_is_seen_in_the_answer() {
    let (set, reference) = (options(Isa::detect()), reference("alternating"));
    let (mut spec, weights) = spec("alternating");
    spec["kinds"][0]["mixer"]["window"] = serde_json::Value::Null;
    let path = common::checkpoint("alternating");
    let full = Decoder::load(&spec.to_string(), &weights.to_string(), &path, &set).unwrap();
    assert_eq!(full.kv_spec().groups.len(), 1);
    let request = [(reference.tokens, reference.greedy.len())];
    let got = whole(&allocated(full, BLOCKS), &set, &request);
    assert_ne!(got[0].tokens, reference.greedy);
}
