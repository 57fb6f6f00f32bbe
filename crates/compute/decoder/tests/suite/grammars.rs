//! Sequences with a grammar: every output matches it and does not depend on how it is computed.

use crate::common;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{checkpoint, registration};
use penstock_decoder::Decoder;
use penstock_kernels::Isa;
use penstock_wire::{
    Grammar, GrammarKind, LAST_SAMPLED, LATE_MASK, NO_TOKEN, SamplingParams, StepPlan,
};
use proptest::prelude::*;
use regex_automata::meta::Regex;

/// A byte that occurs in none of the patterns.
const END: u32 = 2;
const PATTERNS: &[&str] = &[
    "[0-9]{3}-[a-f]{2,9}",
    "(yes|no|maybe)( (yes|no))*",
    "\\{\"a\": (null|[1-9][0-9]*)\\}",
];

/// The tiny model with a byte vocabulary.
fn model() -> PathBuf {
    let directory = std::env::temp_dir().join(format!("penstock-grammars-{}", std::process::id()));
    if !directory.join("tokenizer.json").exists() {
        std::fs::create_dir_all(&directory).unwrap();
        for entry in std::fs::read_dir(checkpoint("llama")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
        let partial = directory.join(format!("partial-{:?}", std::thread::current().id()));
        std::fs::write(&partial, tokenizer()).unwrap();
        std::fs::rename(partial, directory.join("tokenizer.json")).unwrap();
    }
    directory
}

fn tokenizer() -> String {
    let shown = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut hidden = 256..;
    let vocab: serde_json::Map<String, serde_json::Value> = (0..256u32)
        .map(|b| {
            if shown(b) {
                (b, b)
            } else {
                (hidden.next().unwrap(), b)
            }
        })
        .map(|(c, b)| (char::from_u32(c).unwrap().to_string(), b.into()))
        .collect();
    let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true});
    serde_json::json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": bytes,
        "decoder": bytes, "model": {"type": "BPE", "vocab": vocab, "merges": []}})
    .to_string()
}

fn load(path: &Path) -> Decoder {
    let (spec, weights) = common::spec("llama");
    let mut options = common::options(Isa::detect());
    options.max_num_seqs = 2;
    let decoder = Decoder::load(&spec.to_string(), &weights.to_string(), path, &options).unwrap();
    decoder.allocate(&[40]).unwrap();
    decoder
}

fn run(decoder: &Decoder, plan: StepPlan) -> Vec<i32> {
    let future = decoder.submit(plan);
    loop {
        if let Some(result) = future.result(Duration::from_secs(60)) {
            return result.unwrap().tokens;
        }
    }
}

/// Variation of the computation of an output.
#[derive(Clone, Debug, Default)]
struct Way {
    /// Prompt tokens in the first plan; 0 = all.
    chunk: usize,
    /// Plans refer to the previous token as `LAST_SAMPLED`.
    ahead: bool,
    /// Register again after this number of tokens, as after a preemption.
    preempted: usize,
    /// Drafts of each plan (count, correct or wrong).
    drafts: Vec<(usize, bool)>,
}

/// The output after `prompt`, up to its end token and at most `most` tokens.
fn generate(
    decoder: &Decoder,
    prompt: &[i32],
    pattern: &str,
    rules: &SamplingParams,
    way: &Way,
    known: &[i32],
    most: usize,
) -> Vec<i32> {
    let grammar = Grammar::new(GrammarKind::Regex, pattern).encode().unwrap();
    let (mut tokens, mut computed, mut round) = (prompt.to_vec(), 0, 0);
    let (mut blocks, mut late) = (0, false);
    while tokens.len() < prompt.len() + most && !tokens[prompt.len()..].contains(&(END as i32)) {
        let fresh = computed == 0;
        let mut end = tokens.len();
        if fresh && way.chunk > 0 && round == 0 {
            end = way.chunk.min(end);
        }
        let samples = end == tokens.len();
        let mut given = tokens[computed..end].to_vec();
        if way.ahead && !late && given.len() == 1 && !fresh && computed > prompt.len() {
            given[0] = LAST_SAMPLED;
        }
        let mut drafts = Vec::new();
        if samples && !way.drafts.is_empty() {
            let (count, right) = way.drafts[round % way.drafts.len()];
            let follow = known.get(tokens.len() - prompt.len()..).unwrap_or_default();
            drafts = match right {
                true => follow.iter().take(count).copied().collect(),
                false => vec![b'x' as i32; count],
            };
        }
        given.extend(&drafts);
        let needed = (computed + given.len()).div_ceil(16) as i32;
        let added: Vec<i32> = (blocks..needed).collect();
        let mut plan = StepPlan {
            step: 1,
            slots: vec![0],
            starts: vec![computed as i32],
            lengths: vec![given.len() as i32],
            sample: vec![i8::from(samples)],
            drafts: vec![drafts.len() as i32],
            tokens: given,
            kept: vec![blocks],
            added_offsets: vec![0, added.len() as i32],
            added,
            ..StepPlan::default()
        };
        if fresh {
            let mut slot = registration(0, rules.clone(), None);
            slot.grammar = 1;
            slot.history = tokens.clone();
            slot.prompt_len = prompt.len() as u32;
            plan.registrations.push(slot);
            plan.grammars.push(grammar.clone());
        }
        blocks = blocks.max(needed);
        let found = run(decoder, plan);
        if found == [LATE_MASK] {
            (computed, late) = (tokens.len() - 1, true);
            blocks *= i32::from(computed > 0);
            continue;
        }
        late = false;
        computed = if samples {
            tokens.len() - 1 + found.len()
        } else {
            end
        };
        if samples {
            tokens.extend(found);
        }
        round += 1;
        if way.preempted > 0 && round % way.preempted == 0 {
            (computed, blocks) = (0, 0);
        }
    }
    // Tokens that correct drafts add after the end are not sent.
    let mut output = tokens.split_off(prompt.len());
    let end = output.iter().position(|&token| token == END as i32);
    output.truncate(end.map_or(most, |end| end + 1));
    output
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn outputs_match_and_are_the_same_on_every_way(
        pattern in prop::sample::select(PATTERNS),
        prompt in prop::collection::vec(0..256i32, 2..20),
        seed in any::<u64>(),
        temperature in prop::sample::select(vec![0.0f32, 0.7, 3.0]),
        chunk in 1..9usize,
        preempted in 1..4usize,
        drafts in prop::collection::vec((0..4usize, any::<bool>()), 1..4),
    ) {
        let decoder = load(&model());
        let rules = SamplingParams {
            temperature,
            seed,
            suppressed: vec![END],
            ..SamplingParams::GREEDY
        };
        let plain = generate(&decoder, &prompt, pattern, &rules, &Way::default(), &[], 60);
        let ended = plain.last() == Some(&(END as i32));
        let text: Vec<u8> = plain.iter().map(|&t| t as u8).collect();
        if ended {
            let whole = Regex::new(&format!("^(?:{pattern})$")).unwrap();
            prop_assert!(whole.is_match(&text[..text.len() - 1]), "{pattern}: {text:?}");
        }
        for way in [
            Way { chunk, ..Way::default() },
            Way { ahead: true, ..Way::default() },
            Way { preempted, ..Way::default() },
            Way { drafts: drafts.clone(), ..Way::default() },
            Way { drafts, preempted, chunk, ahead: true },
        ] {
            let same = generate(&decoder, &prompt, pattern, &rules, &way, &plain, 60);
            prop_assert_eq!(&same, &plain, "{:?}", way);
        }
    }
}

fn output(rules: SamplingParams, pattern: &str) -> Vec<u8> {
    let decoder = load(&model());
    let most = 12;
    let tokens = generate(
        &decoder,
        &[1, 50],
        pattern,
        &rules,
        &Way::default(),
        &[],
        most,
    );
    tokens.iter().map(|&token| token as u8).collect()
}

#[test]
fn other_rules_yield_to_the_grammar() {
    let rules = SamplingParams {
        suppressed: vec![END],
        ..SamplingParams::GREEDY
    };
    // min_tokens forbids the end token where the grammar allows nothing else.
    let waits = SamplingParams {
        suppressed_until: 30,
        ..rules.clone()
    };
    assert_eq!(output(waits, "ab"), b"ab\x02");
    // No token satisfies both rules.
    let allowed = SamplingParams {
        allowed: vec![u32::from(b'z')],
        ..rules.clone()
    };
    assert_eq!(output(allowed, "ab"), b"ab\x02");
    let biased = SamplingParams {
        bias: vec![(u32::from(b'b'), 100.0), (u32::from(b'z'), 100.0)],
        ..rules.clone()
    };
    assert_eq!(output(biased, "[abc]{4}"), b"bbbb\x02");
    let banned = SamplingParams {
        banned: vec![vec![u32::from(b'a')], vec![u32::from(b'b')]],
        ..rules
    };
    assert_eq!(output(banned, "[abc]{4}"), b"cccc\x02");
}

#[test]
fn a_grammar_that_cannot_be_followed_ends_its_sequence_alone() {
    let rules = SamplingParams {
        suppressed: vec![END],
        ..SamplingParams::GREEDY
    };
    let decoder = load(&model());
    let plan = |slot: u32, pattern: &str| {
        let mut newcomer = registration(slot as usize, rules.clone(), None);
        newcomer.grammar = 1;
        StepPlan {
            step: 1,
            registrations: vec![newcomer],
            grammars: vec![Grammar::new(GrammarKind::Regex, pattern).encode().unwrap()],
            slots: vec![slot as i32],
            starts: vec![0],
            lengths: vec![2],
            sample: vec![1],
            tokens: vec![1, 50],
            kept: vec![0],
            added_offsets: vec![0, 1],
            added: vec![slot as i32],
            ..StepPlan::default()
        }
    };
    // The API server would have refused the first grammar.
    assert_eq!(drawn(&decoder, &plan(0, "(a")), [NO_TOKEN]);
    assert_eq!(drawn(&decoder, &plan(1, "a")), [i32::from(b'a')]);
}

/// The tokens of a plan, resubmitted until the masks are ready.
fn drawn(decoder: &Decoder, plan: &StepPlan) -> Vec<i32> {
    let tokens = (0..).map(|_| run(decoder, plan.clone()));
    tokens
        .into_iter()
        .find(|tokens| !tokens.contains(&LATE_MASK))
        .unwrap()
}

/// A plan of two sequences, the second with a grammar, with one token each.
fn pair(start: i32, tokens: [i32; 2]) -> StepPlan {
    StepPlan {
        step: 1,
        slots: vec![0, 1],
        starts: vec![start; 2],
        lengths: vec![1; 2],
        sample: vec![1; 2],
        tokens: tokens.to_vec(),
        kept: vec![1; 2],
        added_offsets: vec![0; 3],
        ..StepPlan::default()
    }
}

#[test]
fn rows_without_a_grammar_do_not_wait_for_one_that_compiles() {
    // The ranks' tokenizer is a FIFO, so no grammar compiles until the test writes to it.
    let directory = model().with_extension("slow");
    std::fs::create_dir_all(&directory).unwrap();
    let pipe = directory.join("tokenizer.json");
    for entry in std::fs::read_dir(model()).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "tokenizer.json" {
            std::fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
    }
    let _ = std::fs::remove_file(&pipe);
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let rules = SamplingParams {
        suppressed: vec![END],
        ..SamplingParams::GREEDY
    };
    let first = || {
        let mut plan = pair(0, [1, 1]);
        plan.registrations = [0, 1].map(|i| registration(i, rules.clone(), None)).into();
        plan.registrations[1].grammar = 1;
        let grammar = Grammar::new(GrammarKind::Regex, "[0-9]{9}").encode();
        plan.grammars = vec![grammar.unwrap()];
        (plan.kept, plan.added_offsets, plan.added) = (vec![0; 2], vec![0, 1, 2], vec![0, 1]);
        plan
    };
    let decoder = load(&directory);
    let mut plain = vec![1];
    for at in 0..9 {
        let tokens = match at {
            0 => run(&decoder, first()),
            // With plan-ahead, or with known tokens.
            1..5 => run(&decoder, pair(at, [LAST_SAMPLED; 2])),
            _ => {
                let mut alone = pair(at, [plain[at as usize], 0]);
                alone.tokens.truncate(1);
                for column in [&mut alone.slots, &mut alone.starts, &mut alone.lengths] {
                    column.truncate(1);
                }
                (alone.sample, alone.kept) = (vec![1], vec![1]);
                alone.added_offsets.truncate(2);
                [run(&decoder, alone), vec![LATE_MASK]].concat()
            }
        };
        assert_eq!(tokens[1..], [LATE_MASK], "{at}");
        plain.push(tokens[0]);
    }
    std::fs::write(&pipe, tokenizer()).unwrap();
    let mut output = vec![1];
    while output.len() < 10 {
        let at = output.len() - 1;
        let tokens = run(&decoder, pair(at as i32, [plain[at], output[at]]));
        assert_eq!(tokens[0], plain[at + 1]);
        output.extend(tokens[1..].iter().filter(|&&token| token != LATE_MASK));
    }
    let known = generate(
        &load(&model()),
        &[1],
        "[0-9]{9}",
        &rules,
        &Way::default(),
        &[],
        9,
    );
    assert_eq!(output[1..], known);
}
