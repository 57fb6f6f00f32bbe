//! Logit processors compared with a simple reference: the decoder's unmodified log-probabilities of
//! all tokens, processed here in f64, then the largest taken.

use std::collections::BTreeSet;

use crate::common::{GREEDY, load, options, registration};
use penstock_decoder::Decoder;
use penstock_kernels::Isa;
use penstock_wire::{LAST_SAMPLED, SamplingParams, StepPlan};
use proptest::prelude::*;

const VOCAB: usize = 256;
const NEW: usize = 12;

/// Greedy continuation of `prompt` under `rules`, preempted after `preempt` tokens.
fn continued(
    decoder: &Decoder,
    prompt: &[i32],
    rules: &SamplingParams,
    preempt: usize,
    ahead: bool,
) -> Vec<i32> {
    let mut tokens = prompt.to_vec();
    for made in 0..NEW {
        let first = made == 0 || made == preempt;
        let start = if first { 0 } else { tokens.len() - 1 };
        let mut plan = StepPlan {
            step: 1 + made as u64,
            slots: vec![0],
            starts: vec![start as i32],
            lengths: vec![(tokens.len() - start) as i32],
            sample: vec![1],
            tokens: tokens[start..].to_vec(),
            kept: vec![if first { 0 } else { 8 }],
            added: if first { (0..8).collect() } else { Vec::new() },
            ..StepPlan::default()
        };
        plan.added_offsets = vec![0, plan.added.len() as i32];
        if first {
            let mut slot = registration(0, rules.clone(), None);
            if rules.needs_history() {
                slot.history = tokens.clone();
                slot.prompt_len = prompt.len() as u32;
            }
            plan.registrations.push(slot);
        } else if ahead {
            plan.tokens[0] = LAST_SAMPLED;
        }
        let result = loop {
            let future = decoder.submit(plan.clone());
            if let Some(result) = future.result(std::time::Duration::from_secs(60)) {
                break result.unwrap();
            }
        };
        tokens.extend(result.tokens);
    }
    tokens.split_off(prompt.len())
}

/// Log-probabilities of every token after `tokens`, one plan per token; scoring does not use the
/// sampler.
fn logprobs(decoder: &Decoder, tokens: &[i32]) -> Vec<f64> {
    let score = |target: i32| {
        let mut slot = registration(1, GREEDY, None);
        slot.prompt_logprobs = 0;
        let mut targets = vec![-1; tokens.len()];
        *targets.last_mut().unwrap() = target;
        let plan = StepPlan {
            step: 1,
            registrations: vec![slot],
            slots: vec![1],
            starts: vec![0],
            lengths: vec![tokens.len() as i32],
            sample: vec![0],
            tokens: tokens.to_vec(),
            targets,
            kept: vec![0],
            added_offsets: vec![0, 8],
            added: (8..16).collect(),
            ..StepPlan::default()
        };
        let future = decoder.submit(plan);
        let result = future.result(std::time::Duration::from_secs(60)).unwrap();
        f64::from(result.unwrap().prompt_logprobs[0].1[0].logprob)
    };
    (0..VOCAB as i32).map(score).collect()
}

/// The processors as specified in docs/wire.md, over log-probabilities. The repetition penalty
/// depends on the sign of logits, which is lost in log-probabilities, so it has its own test.
fn expected(scores: &[f64], rules: &SamplingParams, prompt: &[i32], output: &[i32]) -> i32 {
    let position = (prompt.len() + output.len()) as u32;
    let value = |token: usize| {
        let id = token as u32;
        let banned = rules.banned.iter().any(|run| {
            let (last, start) = run.split_last().unwrap();
            let start: Vec<i32> = start.iter().map(|&t| t as i32).collect();
            *last == id && output.ends_with(&start)
        });
        let suppressed = position < rules.suppressed_until && rules.suppressed.contains(&id);
        let allowed = rules.allowed.is_empty() || rules.allowed.contains(&id);
        if banned || suppressed || !allowed {
            return f64::NEG_INFINITY;
        }
        let bias: f64 = rules
            .bias
            .iter()
            .filter(|b| b.0 == id)
            .map(|b| f64::from(b.1))
            .sum();
        let count = output.iter().filter(|&&t| t == token as i32).count() as f64;
        let presence = f64::from(rules.presence_penalty) * f64::from(u8::from(count > 0.0));
        scores[token] + bias - f64::from(rules.frequency_penalty) * count - presence
    };
    let best = (0..VOCAB).max_by(|&a, &b| value(a).total_cmp(&value(b)).then(b.cmp(&a)));
    best.unwrap() as i32
}

fn rules() -> impl Strategy<Value = SamplingParams> {
    let token = 0..VOCAB as u32;
    let tokens = |most| prop::collection::vec(0..VOCAB as u32, 0..most);
    let run = prop::collection::vec(token.clone(), 1..3);
    (
        prop::collection::vec((token, -3.0f32..3.0), 0..6),
        prop_oneof![
            Just(Vec::new()),
            prop::collection::vec(0..VOCAB as u32, 3..40)
        ],
        prop::collection::vec(run, 0..6),
        tokens(8),
        0u32..20,
        (-2.0f32..2.0, -2.0f32..2.0),
    )
        .prop_map(
            |(bias, allowed, banned, suppressed, until, penalties)| SamplingParams {
                bias: bias
                    .into_iter()
                    .collect::<std::collections::BTreeMap<_, _>>()
                    .into_iter()
                    .collect(),
                allowed,
                banned,
                suppressed,
                suppressed_until: until,
                presence_penalty: penalties.0,
                frequency_penalty: penalties.1,
                ..GREEDY
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn rules_give_what_a_plain_model_of_them_gives(
        rules in rules(),
        prompt in prop::collection::vec(0..VOCAB as i32, 1..12),
        preempt in 1..NEW,
        ahead in any::<bool>(),
    ) {
        let decoder = load("llama", &options(Isa::detect()));
        let got = continued(&decoder, &prompt, &rules, preempt, ahead);
        let mut tokens = prompt.clone();
        for (i, &token) in got.iter().enumerate() {
            let scores = logprobs(&decoder, &tokens);
            let want = expected(&scores, &rules, &prompt, &got[..i]);
            let close = (scores[want as usize] - scores[token as usize]).abs() < 1e-4;
            prop_assert!(token == want || close, "token {i}: {token}, expected {want}");
            tokens.push(token);
        }
    }
}

#[test]
fn a_strong_repetition_penalty_repeats_nothing_of_prompt_and_output() {
    let decoder = load("llama", &options(Isa::detect()));
    let prompt: Vec<i32> = (0..20).map(|i| i * 7 % 256).collect();
    for preempt in [NEW, 5] {
        let rules = SamplingParams {
            repetition_penalty: 1e6,
            ..GREEDY
        };
        let got = continued(&decoder, &prompt, &rules, preempt, true);
        let all: BTreeSet<i32> = prompt.iter().chain(&got).copied().collect();
        assert_eq!(all.len(), prompt.len() + got.len(), "{got:?}");
    }
}

#[test]
fn rules_that_leave_no_token_are_void() {
    let decoder = load("llama", &options(Isa::detect()));
    let rules = SamplingParams {
        allowed: vec![3],
        suppressed: vec![3],
        suppressed_until: 1000,
        ..GREEDY
    };
    let free = continued(&decoder, &[1, 2, 3], &GREEDY, NEW, false);
    assert_eq!(continued(&decoder, &[1, 2, 3], &rules, NEW, false), free);
}
