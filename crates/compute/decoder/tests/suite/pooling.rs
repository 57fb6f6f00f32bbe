//! Vectors of pooled sequences: they are the hidden states of transformers (the output head maps
//! them to its logits), for any batch and any chunks of the prompt.

use crate::common;
use crate::common::ranks::{Cuts, load_ranks};
use crate::common::{
    Compute, FAMILIES, GREEDY, NUMERICS, Reference, Rng, allocated, checkpoint, load, options,
    reference, registration, spec, whole_tables,
};
use penstock_checkpoint::Checkpoint;
use penstock_decoder::{Decoder, DecoderSpec, Options};
use penstock_kernels::Isa;
use penstock_wire::{Pooling, Registration, StepPlan};
use serde_json::json;

const TABLE: usize = 16;

fn pooled(slot: usize, pooling: Pooling) -> Registration {
    Registration {
        pooling,
        ..registration(slot, GREEDY, None)
    }
}

/// Appends `tokens[from..to]` of the prompt in `slot`.
fn add(
    plan: &mut StepPlan,
    groups: usize,
    slot: usize,
    prompt: &[i32],
    [from, to]: [usize; 2],
    pooling: Pooling,
) {
    if from == 0 {
        plan.registrations.push(pooled(slot, pooling));
    }
    plan.slots.push(slot as i32);
    plan.starts.push(from as i32);
    plan.lengths.push((to - from) as i32);
    plan.tokens.extend(&prompt[from..to]);
    plan.sample.push(i8::from(to == prompt.len()));
    let table: Vec<i32> = (slot * TABLE..(slot + 1) * TABLE)
        .map(|b| b as i32)
        .collect();
    whole_tables(plan, groups, &table);
}

fn empty() -> StepPlan {
    StepPlan {
        added_offsets: vec![0],
        ..StepPlan::default()
    }
}

/// The vectors of all prompts, computed together in chunks of `chunk()` tokens.
fn vectors(
    decoder: &impl Compute,
    prompts: &[(Vec<i32>, Pooling)],
    mut chunk: impl FnMut() -> usize,
) -> Vec<Vec<f32>> {
    let groups = decoder.seen().len();
    let mut done = vec![0; prompts.len()];
    let mut found = vec![Vec::new(); prompts.len()];
    while done.iter().zip(prompts).any(|(done, p)| *done < p.0.len()) {
        let mut plan = empty();
        for (i, (prompt, pooling)) in prompts.iter().enumerate() {
            let to = (done[i] + chunk()).min(prompt.len());
            if done[i] < to {
                add(&mut plan, groups, i, prompt, [done[i], to], *pooling);
                done[i] = to;
            }
        }
        let result = decoder.compute(plan.clone()).unwrap();
        assert!(result.tokens.is_empty(), "no token is drawn");
        for (index, vector) in result.vectors {
            found[plan.slots[index as usize] as usize] = vector;
        }
    }
    found
}

/// The output head of a checkpoint, vocabulary x hidden.
fn head(family: &str) -> Vec<f32> {
    let weights = spec(family).1;
    let stored = weights.get("head").unwrap_or(&weights["embed"]);
    let name = stored.as_str().unwrap();
    let checkpoint = Checkpoint::open(&checkpoint(family)).unwrap();
    let view = checkpoint.tensor(name).unwrap();
    let mut numbers = vec![0.0; view.rows() * view.cols()];
    let rows = numbers.chunks_exact_mut(view.cols()).enumerate();
    rows.for_each(|(row, out)| view.dequantize_row(row, out));
    numbers
}

/// Asserts that the head maps the vector to `logits`.
fn check(what: &str, head: &[f32], vector: &[f32], logits: &[f64], largest: f64) {
    assert_eq!(head.len(), vector.len() * logits.len(), "{what}");
    for (row, want) in head.chunks_exact(vector.len()).zip(logits) {
        let pairs = row.iter().zip(vector);
        let got: f64 = pairs.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
        assert!(
            (got - want).abs() <= 1e-3 * largest,
            "{what}: {got}, not {want}"
        );
    }
}

/// The reference's logits before the cap, as the head computes them.
fn logits(reference: &Reference, cap: Option<f32>) -> Vec<Vec<f64>> {
    let uncapped = |&logit: &f32| match cap.map(f64::from) {
        Some(cap) => cap * (f64::from(logit) / cap).atanh(),
        None => f64::from(logit),
    };
    let rows = reference.logits.iter();
    rows.map(|row| row.iter().map(uncapped).collect()).collect()
}

fn largest(logits: &[Vec<f64>]) -> f64 {
    logits.iter().flatten().fold(0.0, |m, v| m.max(v.abs()))
}

fn mean(logits: &[Vec<f64>]) -> Vec<f64> {
    let column = |i: usize| logits.iter().map(|row| row[i]).sum::<f64>();
    (0..logits[0].len())
        .map(|i| column(i) / logits.len() as f64)
        .collect()
}

fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().filter(|name| !name.ends_with(".gguf"))
}

#[test]
fn the_head_makes_the_logits_of_transformers_of_every_vector() {
    let set = options(Isa::detect());
    for family in families() {
        let (reference, head) = (reference(family), head(family));
        let prompts = [
            (reference.tokens.clone(), Pooling::Last),
            (reference.tokens.clone(), Pooling::Mean),
        ];
        let whole = DecoderSpec::parse(&spec(family).0.to_string()).unwrap();
        let logits = logits(&reference, whole.final_softcap);
        let (last, most) = (logits.last().unwrap(), largest(&logits));
        for (tp, pp) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
            let ranks = load_ranks(family, &set, &Cuts::even(&whole, tp, pp));
            let got = vectors(&ranks, &prompts, || 1000);
            let what = format!("{family} tp={tp} pp={pp}");
            check(&what, &head, &got[0], last, most);
            check(&what, &head, &got[1], &mean(&logits), most);
            assert_eq!(
                vectors(&ranks, &prompts, || 5),
                got,
                "{what} in chunks of 5"
            );
        }
    }
}

#[test]
fn a_vector_has_the_same_bits_alone_and_beside_others_in_any_chunks() {
    for (family, (numerics, kv)) in ["mistral", "qwen2", "llama3", "qwen3", "alternating"]
        .into_iter()
        .zip(NUMERICS)
    {
        let set = Options {
            numerics,
            kv,
            ..options(Isa::detect())
        };
        let decoder = load(family, &set);
        let mut rng = Rng(7);
        let mut prompt = |i: usize| {
            let length = 1 + rng.below(90);
            let pooling = [Pooling::Last, Pooling::Mean][i % 2];
            (
                (0..length).map(|_| rng.below(256) as i32).collect(),
                pooling,
            )
        };
        let prompts: Vec<(Vec<i32>, Pooling)> = (0..10).map(&mut prompt).collect();
        let one =
            |p: &(Vec<i32>, Pooling)| vectors(&decoder, std::slice::from_ref(p), || 1000).remove(0);
        let alone: Vec<_> = prompts.iter().map(one).collect();
        let mut sizes = Rng(8);
        let together = vectors(&decoder, &prompts, || 1 + sizes.below(30));
        assert!(together == alone, "{family} {numerics:?}");
    }
}

/// Rows of the output head used as a classification head give the logits of their tokens.
#[test]
fn a_classification_head_gives_a_number_for_each_label() {
    let (mut written, mut weights) = spec("qwen3");
    written["labels"] = json!(3);
    let stored = weights.get("head").unwrap_or(&weights["embed"]).clone();
    weights["score"] = json!({"tensor": stored, "rows": [4, 7]});
    let set = options(Isa::detect());
    let path = checkpoint("qwen3");
    let decoder = Decoder::load(&written.to_string(), &weights.to_string(), &path, &set).unwrap();
    let (decoder, reference) = (allocated(decoder, common::BLOCKS), reference("qwen3"));
    let prompts = [(reference.tokens.clone(), Pooling::Last)];
    let got = vectors(&decoder, &prompts, || 1000).remove(0);
    let logits = logits(&reference, None);
    for (got, want) in got.iter().zip(&logits.last().unwrap()[4..7]) {
        assert!((f64::from(*got) - want).abs() <= 1e-3 * largest(&logits));
    }
    assert_eq!(got.len(), 3);
}

#[test]
fn plans_that_cannot_be_pooled_are_refused() {
    let decoder = load("llama", &options(Isa::detect()));
    let prompt: Vec<i32> = (0..40).collect();
    let refused = |plan: StepPlan, words: &str| {
        let error = decoder.compute(plan).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let mut gap = empty();
    add(&mut gap, 1, 0, &prompt, [16, 40], Pooling::Mean);
    gap.registrations.push(pooled(0, Pooling::Mean));
    refused(gap, "a mean over 0 tokens goes on at 16");
    let mut drafted = empty();
    add(&mut drafted, 1, 1, &prompt, [0, 40], Pooling::Last);
    drafted.drafts = vec![2];
    refused(drafted, "2 drafts of a pooled sequence");
}
