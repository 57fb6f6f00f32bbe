//! Plans that violate the contract are refused by name, and the decoder remains usable.

use std::sync::LazyLock;

use crate::common::{GREEDY, allocated, load_only, options, registration, step};
use penstock_decoder::{Decoder, DecoderError, Options};
use penstock_kernels::Isa;
use penstock_wire::{LAST_SAMPLED, SamplingParams, StepPlan, StepResult};
use proptest::prelude::*;

const VOCAB: i32 = 256;
const SLOTS: usize = 4;
const BLOCKS: i32 = 8;
const TOKENS: usize = 48;

fn limits() -> Options {
    Options {
        max_num_seqs: SLOTS,
        max_batched_tokens: TOKENS,
        ..options(Isa::detect())
    }
}

fn load() -> Decoder {
    allocated(load_only("mistral", &limits()), BLOCKS as usize)
}

static DECODER: LazyLock<Decoder> = LazyLock::new(load);

/// Two sequences: a prefill of 20 tokens in slot 0, one of 5 in slot 2.
fn plan() -> StepPlan {
    StepPlan {
        step: 1,
        registrations: vec![
            registration(0, GREEDY, Some(3)),
            registration(2, GREEDY, Some(3)),
        ],
        grammars: vec![],
        slots: vec![0, 2],
        starts: vec![0, 0],
        lengths: vec![20, 5],
        tokens: (0..25).collect(),
        targets: vec![],
        sample: vec![1, 1],
        drafts: vec![],
        kept: vec![0, 0],
        added: vec![3, 1, 6],
        added_offsets: vec![0, 2, 3],
    }
}

/// The message of a refused plan.
fn refused(plan: StepPlan) -> String {
    match step(&DECODER, plan) {
        Err(DecoderError::Plan(message)) => message,
        other => panic!("not refused: {other:?}"),
    }
}

fn accepted(plan: StepPlan) -> StepResult {
    step(&DECODER, plan).unwrap()
}

/// A change to the plan, and the text that the refusal must contain.
type Case = (&'static str, fn(&mut StepPlan));

#[test]
fn each_broken_rule_is_named() {
    let cases: [Case; 44] = [
        ("differ in length", |p| p.starts.truncate(1)),
        ("differ in length", |p| p.lengths.push(1)),
        ("differ in length", |p| p.sample.clear()),
        ("differ in length", |p| p.drafts = vec![0]),
        ("differ in length", |p| p.tokens.truncate(24)),
        ("differ in length", |p| p.kept.truncate(1)),
        ("differ in length", |p| p.added_offsets.truncate(2)),
        ("differ in length", |p| p.targets = vec![-1; 24]),
        ("tokens, not in 1..=48", |p| {
            *p = StepPlan {
                added_offsets: vec![0],
                ..StepPlan::default()
            }
        }),
        ("49 tokens, not in", |p| {
            (p.lengths[1], p.tokens) = (29, vec![0; 49])
        }),
        ("token id 256", |p| p.tokens[7] = VOCAB),
        ("token id -1", |p| p.tokens[7] = -1),
        ("token id -2", |p| p.tokens[20] = -2),
        ("slot 2 has no last token", |p| p.tokens[20] = LAST_SAMPLED),
        ("token id -2", |p| p.targets = vec![-2; 25]),
        ("token id 256", |p| p.targets = vec![VOCAB; 25]),
        ("slot 4", |p| p.slots[0] = 4),
        ("slot -1", |p| p.slots[0] = -1),
        ("slot 2 appears twice", |p| p.slots[0] = 2),
        ("block 8", |p| p.added[1] = BLOCKS),
        ("block -5", |p| p.added[1] = -5),
        ("no block for a part of 0..2", |p| p.added[1] = -1),
        ("no block for a part of 0..2", |p| p.added[0] = -1),
        ("block to be written 3 appears twice", |p| p.added[2] = 3),
        ("block to be written 3 appears twice", |p| p.added[1] = 3),
        ("slot 4 is not under", |p| p.registrations[0].slot = 4),
        ("slot 0: SAMPLING frame", |p| {
            p.registrations[0].sampling.truncate(5)
        }),
        ("slot 0: SAMPLING frame", |p| {
            p.registrations[0].sampling.push(0)
        }),
        ("version", |p| p.registrations[0].sampling[0] = 77),
        ("temperature", |p| {
            p.registrations[0].sampling[1..5].copy_from_slice(&(-1.0f32).to_le_bytes())
        }),
        ("top_p", |p| {
            p.registrations[0].sampling[9..13].copy_from_slice(&f32::NAN.to_le_bytes())
        }),
        ("257 alternatives", |p| {
            p.registrations[0].prompt_logprobs = 257
        }),
        ("-2 alternatives", |p| {
            p.registrations[0].prompt_logprobs = -2
        }),
        ("grammar 5", |p| p.registrations[0].grammar = 5),
        ("adapter 6", |p| p.registrations[0].adapter = 6),
        ("positions -1..19", |p| p.starts[0] = -1),
        ("positions 120..140", |p| p.starts[0] = 120),
        ("2147483647", |p| p.starts[0] = i32::MAX),
        ("1 blocks where 2 are needed", |p| {
            p.added_offsets = vec![0, 1, 3]
        }),
        ("do not ascend", |p| p.added_offsets = vec![2, 0, 3]),
        ("do not ascend", |p| p.added_offsets = vec![0, 2, 2]),
        ("keeps 1 of 0 blocks", |p| p.kept[1] = 1),
        ("5 drafts, not in 0..=4", |p| p.drafts = vec![0, 5]),
        ("1 drafts, not in 0..=0", |p| {
            (p.drafts, p.sample) = (vec![0, 1], vec![1, 0])
        }),
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

fn message(result: Result<StepResult, DecoderError>) -> String {
    result.err().unwrap().to_string()
}

#[test]
fn a_slot_must_be_registered_before_it_is_used() {
    let decoder = load();
    let unregistered = StepPlan {
        registrations: vec![],
        ..plan()
    };
    let refused = message(step(&decoder, unregistered.clone()));
    assert!(refused.contains("slot 0 was never registered"), "{refused}");
    step(&decoder, plan()).unwrap();
    step(&decoder, unregistered).unwrap();
}

/// Slots of a failed plan, scheduled or registered, are unusable until they are registered again;
/// other slots are unaffected.
#[test]
fn a_failed_plan_poisons_its_slots() {
    let decoder = load();
    let decode = |slot| StepPlan {
        slots: vec![slot],
        starts: vec![20],
        lengths: vec![1],
        tokens: vec![LAST_SAMPLED],
        sample: vec![1],
        kept: vec![2],
        added: vec![],
        added_offsets: vec![0, 0],
        ..StepPlan::default()
    };
    let expected = step(&decoder, plan()).and_then(|_| step(&decoder, decode(0)));
    let expected = expected.unwrap();
    let failures: [fn(&mut StepPlan); 3] = [
        |p| p.slots.truncate(1),
        |p| p.kept[0] = 9,
        |p| p.added[0] = -1,
    ];
    for fail in failures {
        step(&decoder, plan()).unwrap();
        let mut failed = plan();
        failed.registrations[1].slot = 1;
        fail(&mut failed);
        step(&decoder, failed).unwrap_err();
        for slot in [0, 1] {
            let refused = message(step(&decoder, decode(slot)));
            assert!(refused.contains("register it again"), "{refused}");
        }
        let again = step(&decoder, plan()).and_then(|_| step(&decoder, decode(0)));
        assert_eq!(again.unwrap().tokens, expected.tokens);
    }
}

/// Steps need blocks, and blocks can be allocated only once.
#[test]
fn steps_need_blocks() {
    let decoder = load_only("mistral", &limits());
    let refused = message(step(&decoder, plan()));
    assert!(refused.contains("before `allocate`"), "{refused}");
    assert!(decoder.pools().is_empty());
    for blocks in [&[][..], &[0], &[8, 8], &[usize::MAX]] {
        let refused = decoder.allocate(blocks).err().unwrap().to_string();
        assert!(refused.contains("for each of 1 KV groups"), "{refused}");
    }
    decoder.allocate(&[BLOCKS as usize]).unwrap();
    let refused = decoder.allocate(&[8]).err().unwrap().to_string();
    assert!(refused.contains("allocated already"), "{refused}");
    step(&decoder, plan()).unwrap();
    let (spec, pool) = (decoder.kv_spec(), &decoder.pools()[0]);
    assert_eq!(spec.groups[0].block_bytes, pool.block_bytes());
    assert_eq!((spec.block_size, pool.blocks()), (16, BLOCKS as usize));
}

/// Lengths of zero and less, with a matching token count.
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
    // Both sequences continue after a common first block.
    let shared = StepPlan {
        starts: vec![16, 16],
        lengths: vec![1, 1],
        tokens: vec![5, 5],
        added: vec![3, 1, 3, 6],
        added_offsets: vec![0, 2, 4],
        ..plan()
    };
    let output = accepted(shared);
    assert_eq!(output.tokens[0], output.tokens[1]);
}

/// A block in a transfer is refused by name, only during the transfer; a block in a step cannot be
/// lent.
#[test]
fn a_lent_block_is_in_no_plan() {
    let decoder = load();
    let pool = &decoder.pools()[0];
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

/// Readers of a block do not interfere with steps that read it, nor do transfers of blocks after
/// the step's tokens.
#[test]
fn a_step_shares_what_it_reads() {
    let decoder = load();
    step(&decoder, plan()).unwrap();
    let next = StepPlan {
        starts: vec![20, 5],
        lengths: vec![1, 1],
        tokens: vec![5, 5],
        added: vec![3, 1, 7, 6],
        added_offsets: vec![0, 3, 4],
        ..plan()
    };
    let expected = step(&decoder, next.clone()).unwrap();
    let (read, write) = (decoder.pools()[0].read(3), decoder.pools()[0].write(7));
    assert!(read.is_some() && write.is_some());
    assert_eq!(step(&decoder, next).unwrap(), expected);
}

#[test]
fn the_ends_of_the_ranges_are_accepted() {
    let last = StepPlan {
        starts: vec![108, 0],
        added: vec![0, 1, 2, 3, 4, 5, 6, 7, 0],
        added_offsets: vec![0, 8, 9],
        ..plan()
    };
    // Positions 108..128 write only blocks 6 and 7.
    accepted(last);
    for (temperature, top_p, top_k) in [
        (f32::MAX, 0.5, 0),
        (f32::MIN_POSITIVE, 0.5, 7),
        (1.0, f32::MIN_POSITIVE, 0),
        (1.0, 1.0, i32::MAX as u32),
    ] {
        let sampling = SamplingParams {
            temperature,
            top_p,
            top_k,
            seed: u64::MAX,
            choice: u32::MAX,
            logprobs: None,
            ..GREEDY
        };
        let output = accepted(StepPlan {
            registrations: vec![
                registration(0, sampling.clone(), Some(3)),
                registration(2, sampling, Some(3)),
            ],
            ..plan()
        });
        assert!(output.tokens.iter().all(|t| (0..VOCAB).contains(t)));
    }
    let all = accepted(StepPlan {
        registrations: vec![
            registration(0, GREEDY, Some(256)),
            registration(2, GREEDY, None),
        ],
        targets: vec![7; 25],
        ..plan()
    });
    let [(0, rows)] = all.prompt_logprobs.as_slice() else {
        panic!("{:?}", all.prompt_logprobs)
    };
    assert_eq!(rows.len(), 20);
    assert!(rows.iter().all(|row| row.alternatives.len() == 256));
}

/// Numbers at and near every limit.
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

/// A valid plan with some numbers replaced, so that it violates only one or two rules.
fn nearly_good() -> impl Strategy<Value = StepPlan> {
    let edit = (0usize..9, any::<proptest::sample::Index>(), number());
    proptest::collection::vec(edit, 0..4).prop_map(|edits| {
        let mut p = plan();
        for (which, at, value) in edits {
            let column = match which {
                0 => &mut p.slots,
                1 => &mut p.starts,
                2 => &mut p.lengths,
                3 => &mut p.tokens,
                4 => &mut p.added,
                5 => &mut p.added_offsets,
                6 => &mut p.kept,
                7 => &mut p.drafts,
                _ => &mut p.targets,
            };
            if column.is_empty() {
                let (len, value) = if which == 7 { (2, 0) } else { (25, -1) };
                column.resize(len, value);
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
        (column(0..4), column(0..4)),
        column(0..9),
        column(0..5),
    )
        .prop_map(
            |(slots, starts, lengths, tokens, targets, sample, (drafts, kept), added, offsets)| {
                StepPlan {
                    step: 1,
                    registrations: vec![registration(0, GREEDY, Some(3))],
                    grammars: vec![],
                    slots,
                    starts,
                    lengths,
                    sample,
                    drafts,
                    tokens,
                    targets,
                    kept,
                    added_offsets: offsets,
                    added,
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// For any plan, the step ends in a result or a refusal; a panic of the forward pass would be
    /// `Failed`.
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
