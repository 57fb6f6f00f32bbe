//! Plans that break the contract are refused by name, and the decoder lives on.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::LazyLock;

use common::{GREEDY, load, options, step};
use penstock_decoder::{Decoder, DecoderError, Options, Registration, StepOutput, StepPlan};
use penstock_kernels::{Isa, Sampling};
use proptest::prelude::*;

const VOCAB: i32 = 256;
const SLOTS: usize = 4;
const BLOCKS: i32 = 8;
const TOKENS: usize = 48;

fn limits() -> Options {
    Options {
        max_num_seqs: SLOTS,
        num_blocks: BLOCKS as usize,
        max_batched_tokens: TOKENS,
        ..options(Isa::detect())
    }
}

static DECODER: LazyLock<Decoder> = LazyLock::new(|| load("mistral", &limits()));

fn registration(slot: usize, sampling: Sampling) -> Registration {
    Registration {
        slot,
        sampling,
        logprobs: Some(3),
        prompt_logprobs: None,
    }
}

/// Two sequences: a prefill of 20 tokens in slot 0, one of 5 in slot 2.
fn plan() -> StepPlan {
    StepPlan {
        registrations: vec![registration(0, GREEDY), registration(2, GREEDY)],
        slots: vec![0, 2],
        starts: vec![0, 0],
        lengths: vec![20, 5],
        tokens: (0..25).collect(),
        targets: vec![],
        sample: vec![1, 1],
        blocks: vec![3, 1, 6],
        block_offsets: vec![0, 2, 3],
    }
}

/// The message of a refused plan.
fn refused(plan: StepPlan) -> String {
    match step(&DECODER, plan) {
        Err(DecoderError::Plan(message)) => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn accepted(plan: StepPlan) -> StepOutput {
    step(&DECODER, plan).unwrap()
}

/// Changes the plan and names what the refusal must say.
type Case = (&'static str, fn(&mut StepPlan));

#[test]
fn each_broken_rule_is_named() {
    let cases: [Case; 31] = [
        ("differ in length", |p| p.starts.truncate(1)),
        ("differ in length", |p| p.lengths.push(1)),
        ("differ in length", |p| p.sample.clear()),
        ("differ in length", |p| p.tokens.truncate(24)),
        ("differ in length", |p| p.block_offsets.truncate(2)),
        ("differ in length", |p| p.targets = vec![-1; 24]),
        ("tokens, not in 1..=48", |p| {
            *p = StepPlan {
                block_offsets: vec![0],
                ..StepPlan::default()
            }
        }),
        ("49 tokens, not in", |p| {
            (p.lengths[1], p.tokens) = (29, vec![0; 49])
        }),
        ("token id 256", |p| p.tokens[7] = VOCAB),
        ("token id -1", |p| p.tokens[7] = -1),
        ("token id -2", |p| p.targets = vec![-2; 25]),
        ("token id 256", |p| p.targets = vec![VOCAB; 25]),
        ("slot 4", |p| p.slots[0] = 4),
        ("slot -1", |p| p.slots[0] = -1),
        ("slot 2 appears twice", |p| p.slots[0] = 2),
        ("block 8", |p| p.blocks[1] = BLOCKS),
        ("block -5", |p| p.blocks[1] = -5),
        ("block to be written 3 appears twice", |p| p.blocks[2] = 3),
        ("block to be written 3 appears twice", |p| p.blocks[1] = 3),
        ("slot 4 is not under", |p| p.registrations[0].slot = 4),
        ("temperature -1", |p| {
            p.registrations[0].sampling.temperature = -1.0
        }),
        ("temperature NaN", |p| {
            p.registrations[0].sampling.temperature = f32::NAN
        }),
        ("top_p 1.5", |p| p.registrations[0].sampling.top_p = 1.5),
        ("top_p NaN", |p| {
            p.registrations[0].sampling.top_p = f32::NAN
        }),
        ("257 alternatives", |p| {
            p.registrations[0].logprobs = Some(257)
        }),
        ("alternatives", |p| {
            p.registrations[0].prompt_logprobs = Some(usize::MAX)
        }),
        ("positions -1..19", |p| p.starts[0] = -1),
        ("positions 120..140", |p| p.starts[0] = 120),
        ("2147483647", |p| p.starts[0] = i32::MAX),
        ("1 blocks where 2 are needed", |p| {
            p.block_offsets = vec![0, 1, 3]
        }),
        ("blocks where", |p| p.block_offsets = vec![2, 0, 3]),
    ];
    for (what, change) in cases {
        let mut broken = plan();
        change(&mut broken);
        let message = refused(broken.clone());
        assert!(
            message.contains(what),
            "{message:?} does not say {what:?} of {broken:?}"
        );
    }
    accepted(plan());
}

#[test]
fn a_slot_must_be_registered_before_it_is_used() {
    let decoder = load("mistral", &limits());
    let unregistered = StepPlan {
        registrations: vec![],
        ..plan()
    };
    let Err(DecoderError::Plan(message)) = step(&decoder, unregistered.clone()) else {
        panic!("not refused")
    };
    assert!(message.contains("slot 0 was never registered"), "{message}");
    step(&decoder, plan()).unwrap();
    step(&decoder, unregistered).unwrap();
}

/// Lengths of zero and below, with the token count made to fit.
#[test]
fn lengths_are_at_least_one() {
    for (first, second) in [(0, 25), (-5, 30), (26, -1), (i32::MIN, i32::MAX)] {
        refused(StepPlan {
            lengths: vec![first, second],
            ..plan()
        });
    }
}

#[test]
fn blocks_may_be_shared_by_readers() {
    accepted(plan());
    // Both sequences go on after a common first block.
    let shared = StepPlan {
        starts: vec![16, 16],
        lengths: vec![1, 1],
        tokens: vec![5, 5],
        blocks: vec![3, 1, 3, 6],
        block_offsets: vec![0, 2, 4],
        ..plan()
    };
    let output = accepted(shared);
    assert_eq!(output.tokens[0], output.tokens[1]);
}

/// What a transfer has is refused by name, and only while it has it; what a step has is not lent.
#[test]
fn a_lent_block_is_in_no_plan() {
    let decoder = load("mistral", &limits());
    let pool = decoder.pool();
    let expected = step(&decoder, plan()).unwrap();
    let message = |plan: StepPlan| match step(&decoder, plan) {
        Err(DecoderError::Plan(message)) => message,
        other => panic!("not refused: {other:?}"),
    };
    let loading = pool.write(1).unwrap();
    assert!(message(plan()).contains("block 1 is lent for writing"));
    drop(loading);
    let storing = pool.read(6).unwrap();
    assert!(message(plan()).contains("block 6, to be written, is lent for reading"));
    // The blocks of a refused plan are free again.
    assert!(pool.write(3).is_some() && pool.write(1).is_some());
    drop(storing);
    assert_eq!(step(&decoder, plan()).unwrap(), expected);
}

/// Readers of a block do not disturb steps that read it, nor does whoever has a block behind the
/// step's tokens.
#[test]
fn a_step_shares_what_it_reads() {
    let decoder = load("mistral", &limits());
    step(&decoder, plan()).unwrap();
    let next = StepPlan {
        starts: vec![20, 5],
        lengths: vec![1, 1],
        tokens: vec![5, 5],
        blocks: vec![3, 1, 7, 6],
        block_offsets: vec![0, 3, 4],
        ..plan()
    };
    let expected = step(&decoder, next.clone()).unwrap();
    let (read, write) = (decoder.pool().read(3), decoder.pool().write(7));
    assert!(read.is_some() && write.is_some());
    assert_eq!(step(&decoder, next).unwrap(), expected);
}

#[test]
fn the_ends_of_the_ranges_are_accepted() {
    let last = StepPlan {
        starts: vec![108, 0],
        blocks: vec![0, 1, 2, 3, 4, 5, 6, 7, 0],
        block_offsets: vec![0, 8, 9],
        ..plan()
    };
    // Positions 108..128 write blocks 6 and 7 only.
    accepted(last);
    for (temperature, top_p, top_k) in [
        (f32::INFINITY, 0.5, 0),
        (f32::MIN_POSITIVE, 0.5, 7),
        (1.0, 0.0, 0),
        (1.0, 1.0, usize::MAX),
    ] {
        let sampling = Sampling {
            temperature,
            top_p,
            top_k,
            seed: u64::MAX,
            choice: u32::MAX,
        };
        let output = accepted(StepPlan {
            registrations: vec![registration(0, sampling), registration(2, sampling)],
            ..plan()
        });
        assert!(output.tokens.iter().all(|t| (0..VOCAB).contains(t)));
    }
    let all = Registration {
        logprobs: Some(256),
        ..registration(0, GREEDY)
    };
    assert_eq!(
        accepted(StepPlan {
            registrations: vec![all],
            ..plan()
        })
        .logprobs[0]
            .1
            .top
            .len(),
        256
    );
}

/// Numbers at and around every limit.
fn number() -> impl Strategy<Value = i32> {
    prop_oneof![
        -2i32..6,
        14i32..50,
        250i32..260,
        Just(i32::MIN),
        Just(i32::MAX),
        any::<i32>()
    ]
}

fn column(length: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<i32>> {
    proptest::collection::vec(number(), length)
}

/// A good plan with some numbers replaced, so that most rules hold and one or two do not.
fn nearly_good() -> impl Strategy<Value = StepPlan> {
    let edit = (0usize..7, any::<proptest::sample::Index>(), number());
    proptest::collection::vec(edit, 0..4).prop_map(|edits| {
        let mut p = plan();
        for (which, at, value) in edits {
            let column = match which {
                0 => &mut p.slots,
                1 => &mut p.starts,
                2 => &mut p.lengths,
                3 => &mut p.tokens,
                4 => &mut p.blocks,
                5 => &mut p.block_offsets,
                _ => &mut p.targets,
            };
            if column.is_empty() {
                column.resize(25, -1);
            }
            let at = at.index(column.len());
            column[at] = value;
        }
        p
    })
}

/// Columns of any length and content.
fn nonsense() -> impl Strategy<Value = StepPlan> {
    let sample = proptest::collection::vec(any::<i8>(), 0..4);
    (
        column(0..4),
        column(0..4),
        column(0..4),
        column(0..30),
        column(0..30),
        sample,
        column(0..9),
        column(0..5),
    )
        .prop_map(
            |(slots, starts, lengths, tokens, targets, sample, blocks, block_offsets)| StepPlan {
                registrations: vec![registration(0, GREEDY)],
                slots,
                starts,
                lengths,
                tokens,
                targets,
                sample,
                blocks,
                block_offsets,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Whatever a plan holds, the step ends in a result or a refusal; a panic of the forward pass
    /// would be `Failed`.
    #[test]
    fn no_plan_breaks_the_decoder(plan in prop_oneof![3 => nearly_good(), 1 => nonsense()]) {
        let sequences = plan.slots.len();
        match step(&DECODER, plan) {
            Ok(output) => prop_assert_eq!(output.counts.len(), sequences),
            Err(DecoderError::Plan(_)) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
