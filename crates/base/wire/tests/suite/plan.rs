//! Plans and results: round trips, sizes, and damaged bytes.

use crate::common;
use penstock_wire::{
    LAST_SAMPLED, LogprobRow, MAX_SAMPLING_BYTES, MaskCost, Pooling, Registration, SamplingParams,
    StepPlan, StepResult, plan_bytes, result_bytes,
};
use proptest::prelude::*;

const LENGTH: usize = 9;

fn ints(count: usize) -> impl Strategy<Value = Vec<i32>> {
    prop::collection::vec(any::<i32>(), count)
}

fn registration() -> impl Strategy<Value = Registration> {
    let sampling = prop::collection::vec(any::<u8>(), 0..=MAX_SAMPLING_BYTES);
    let sampling = prop_oneof![prop::collection::vec(any::<u8>(), 0..64), sampling];
    let history = prop::collection::vec(any::<i32>(), 0..LENGTH);
    (any::<(u32, i32, u32, u32, u32)>(), sampling, history).prop_map(
        |((slot, prompt_logprobs, grammar, adapter, prompt_len), sampling, history)| Registration {
            slot,
            sampling,
            prompt_logprobs,
            grammar,
            adapter,
            pooling: Pooling::from_code((adapter % 3) as u8).unwrap_or_default(),
            history,
            prompt_len,
        },
    )
}

fn plan() -> impl Strategy<Value = StepPlan> {
    let sizes = (
        0..5usize,
        1..4usize,
        0..20usize,
        0..9usize,
        any::<[bool; 2]>(),
    );
    sizes.prop_flat_map(|(n, groups, tokens, added, [drafts, targets])| {
        let tables = n * groups;
        let optional = |wanted, count| ints(if wanted { count } else { 0 });
        let columns = (
            (
                prop::collection::vec(registration(), 0..=n),
                prop::collection::vec(prop::collection::vec(any::<u8>(), 1..9), 0..=n),
            ),
            (ints(n), ints(n), ints(n), optional(drafts, n)),
            prop::collection::vec(any::<i8>(), n),
            (ints(tokens), optional(targets, tokens)),
            (ints(tables), ints(tables + 1), ints(added)),
        );
        (any::<u64>(), columns).prop_map(|(step, columns)| {
            let (newcomers, (slots, starts, lengths, drafts), sample, words, tables) = columns;
            StepPlan {
                step,
                registrations: newcomers.0,
                grammars: newcomers.1,
                slots,
                starts,
                lengths,
                sample,
                drafts,
                tokens: words.0,
                targets: words.1,
                kept: tables.0,
                added_offsets: tables.1,
                added: tables.2,
            }
        })
    })
}

fn row() -> impl Strategy<Value = LogprobRow> {
    let alternatives = prop::collection::vec((any::<u32>(), -9.0f32..0.0), 0..4);
    (-9.0f32..0.0, any::<u32>(), alternatives).prop_map(|(logprob, rank, alternatives)| {
        LogprobRow {
            logprob,
            rank,
            alternatives,
        }
    })
}

fn result() -> impl Strategy<Value = StepResult> {
    (
        ints(3),
        ints(4),
        0.0..9.0f64,
        prop::collection::vec(row(), 0..4),
    )
        .prop_map(|(counts, tokens, seconds, rows)| StepResult {
            counts,
            tokens,
            logprobs: vec![(0, rows.clone()), (2, rows.clone())],
            vectors: vec![
                (1, rows.iter().map(|row| row.logprob).collect()),
                (2, vec![0.5]),
            ],
            prompt_logprobs: vec![(1, rows)],
            masks: MaskCost {
                count: 3,
                seconds,
                wait_seconds: seconds / 2.0,
            },
            seconds,
        })
}

fn encoded(plan: &StepPlan) -> Vec<u8> {
    let mut out = Vec::new();
    plan.encode(&mut out).expect("a plan whose columns fit");
    out
}

proptest! {
    #[test]
    fn a_plan_survives_its_bytes(plan in plan()) {
        let bytes = encoded(&plan);
        let groups = plan.kept.len() / plan.slots.len().max(1);
        let (n, tokens) = (plan.slots.len(), plan.tokens.len());
        let most = plan_bytes(n, tokens, groups, plan.added.len(), LENGTH);
        prop_assert!(bytes.len() <= most);
        prop_assert_eq!(StepPlan::decode(&bytes), Ok(plan));
    }

    #[test]
    fn a_result_survives_its_bytes(result in result()) {
        let mut bytes = Vec::new();
        result.encode(&mut bytes).expect("a result");
        prop_assert!(bytes.len() <= result_bytes(3, 12, 4, 4));
        prop_assert_eq!(StepResult::decode(&bytes), Ok(result));
    }

    /// Any truncation is an error that names a field; any flipped bit is an error or a different
    /// plan.
    #[test]
    fn damaged_bytes_are_an_error_or_a_message(
        plan in plan(), result in result(), cut in any::<usize>(), flip in 1..=255u8,
    ) {
        let mut bytes = encoded(&plan);
        let at = cut % bytes.len();
        prop_assert!(StepPlan::decode(&bytes[..at]).is_err());
        bytes[at] ^= flip;
        let _ = StepPlan::decode(&bytes);

        let mut bytes = Vec::new();
        result.encode(&mut bytes).expect("a result");
        let at = cut % bytes.len();
        prop_assert!(StepResult::decode(&bytes[..at]).is_err());
        bytes[at] ^= flip;
        let _ = StepResult::decode(&bytes);
    }

    #[test]
    fn sampling_parameters_survive_their_bytes(
        temperature in 0.0f32..9.0,
        top_k in 0..=i32::MAX as u32,
        top_p in 0.01f32..=1.0,
        (seed, choice) in any::<(u64, u32)>(),
        logprobs in prop::option::of(0..=20u8),
    ) {
        let params = SamplingParams { temperature, top_k, top_p, seed, choice, logprobs,
            ..common::logit_rules(&[choice, top_k, 7], top_p)
        };
        let bytes = params.encode().expect("parameters in range");
        prop_assert!(bytes.len() <= MAX_SAMPLING_BYTES);
        prop_assert_eq!(SamplingParams::decode(&bytes), Ok(params));
        for end in 0..bytes.len() {
            prop_assert!(SamplingParams::decode(&bytes[..end]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_a_message(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = StepPlan::decode(&bytes);
        let _ = StepResult::decode(&bytes);
        let _ = SamplingParams::decode(&bytes);
    }
}

#[test]
fn columns_of_different_length_are_an_error() {
    let plan = StepPlan {
        slots: vec![0, 1],
        starts: vec![0],
        ..StepPlan::default()
    };
    let error = plan
        .encode(&mut Vec::new())
        .expect_err("columns that do not fit");
    assert_eq!(error.field, "starts");
}

#[test]
fn a_huge_count_reserves_nothing() {
    let plan = StepPlan {
        slots: vec![3],
        starts: vec![7],
        lengths: vec![1],
        sample: vec![1],
        tokens: vec![LAST_SAMPLED],
        kept: vec![1],
        added_offsets: vec![0, 0],
        ..StepPlan::default()
    };
    for at in [8, 12, 16, 20, 24] {
        let mut bytes = encoded(&plan);
        bytes[at..at + 4].fill(0xff);
        assert!(StepPlan::decode(&bytes).is_err(), "count at byte {at}");
    }
}

#[test]
fn values_out_of_range_name_their_field() {
    let good = SamplingParams::default();
    for (params, field) in [
        (
            SamplingParams {
                temperature: f32::NAN,
                ..good.clone()
            },
            "temperature",
        ),
        (
            SamplingParams {
                temperature: -0.1,
                ..good.clone()
            },
            "temperature",
        ),
        (
            SamplingParams {
                top_k: 1 << 31,
                ..good.clone()
            },
            "top_k",
        ),
        (
            SamplingParams {
                top_p: 0.0,
                ..good.clone()
            },
            "top_p",
        ),
        (
            SamplingParams {
                top_p: 1.1,
                ..good.clone()
            },
            "top_p",
        ),
        (
            SamplingParams {
                logprobs: Some(21),
                ..good.clone()
            },
            "logprobs",
        ),
        (
            SamplingParams {
                min_p: 1.5,
                ..good.clone()
            },
            "min_p",
        ),
        (
            SamplingParams {
                repetition_penalty: 0.0,
                ..good.clone()
            },
            "repetition_penalty",
        ),
        (
            SamplingParams {
                presence_penalty: -2.5,
                ..good.clone()
            },
            "presence_penalty",
        ),
        (
            SamplingParams {
                frequency_penalty: f32::NAN,
                ..good.clone()
            },
            "frequency_penalty",
        ),
        (
            SamplingParams {
                bias: vec![(1, f32::INFINITY)],
                ..good.clone()
            },
            "bias",
        ),
        (
            SamplingParams {
                banned: vec![Vec::new()],
                ..good.clone()
            },
            "banned",
        ),
        (
            SamplingParams {
                allowed: vec![1; 5000],
                ..good.clone()
            },
            "sampling",
        ),
    ] {
        assert_eq!(params.encode().expect_err(field).field, field);
    }
    let mut bytes = good.encode().expect("parameters in range");
    bytes[0] = 1;
    assert_eq!(
        SamplingParams::decode(&bytes).expect_err("version 1").field,
        "version"
    );
}
