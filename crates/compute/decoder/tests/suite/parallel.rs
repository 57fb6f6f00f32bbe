//! A decoder partitioned over ranks, by tensors and by layers, evenly or not, computes the results
//! of the whole decoder.

use crate::common;
use crate::common::ranks::{Cuts, Ranks, Way, load_ranks, load_ranks_by};
use crate::common::{
    Answer, Compute, FAMILIES, GREEDY, NUMERICS, Reference, Request, Rng, load, options, reference,
    run, spec,
};
use penstock_decoder::{DecoderError, DecoderSpec, Options, Shard};
use penstock_kernels::Isa;
use penstock_wire::StepPlan;
use proptest::prelude::*;
use serde_json::json;

const VOCAB: usize = 256;

fn whole_spec(family: &str) -> DecoderSpec {
    DecoderSpec::parse(&spec(family).0.to_string()).unwrap()
}

fn answer(ranks: &impl Compute, set: &Options, reference: &Reference, chunk: usize) -> Answer {
    let request = Request {
        prompt: reference.tokens.clone(),
        new_tokens: reference.greedy.len(),
        sampling: GREEDY,
        logprobs: VOCAB,
    };
    run(ranks, set, &[request], || chunk).remove(0)
}

/// Largest difference of log-probabilities from reference logits, over all positions and tokens.
fn distance(answer: &Answer, reference: &Reference) -> f64 {
    let mut worst = 0.0f64;
    assert_eq!(answer.prompt.len(), reference.logits.len());
    for (row, logits) in answer.prompt.iter().zip(&reference.logits) {
        let norm = logits.iter().map(|&v| f64::from(v).exp()).sum::<f64>().ln();
        for &(token, logprob) in &row.alternatives {
            let want = f64::from(logits[token as usize]) - norm;
            worst = worst.max((f64::from(logprob) - want).abs());
        }
    }
    worst
}

fn largest(reference: &Reference) -> f64 {
    let logits = reference.logits.iter().flatten();
    logits.fold(0.0, |m, v| m.max(f64::from(v.abs())))
}

#[test]
fn every_grid_of_ranks_gives_the_logits_of_transformers() {
    let set = options(Isa::detect());
    for family in FAMILIES {
        let reference = reference(family);
        for (tp, pp) in (1..=3).flat_map(|tp| (1..=3).map(move |pp| (tp, pp))) {
            let cuts = Cuts::even(&whole_spec(family), tp, pp);
            let ranks = load_ranks(family, &set, &cuts);
            let got = answer(&ranks, &set, &reference, 1000);
            let (off, limit) = (distance(&got, &reference), 1e-3 * largest(&reference));
            assert!(
                off <= limit,
                "{family} tp={tp} pp={pp}: off by {off}, limit {limit}"
            );
            assert_eq!(got.tokens, reference.greedy, "{family} tp={tp} pp={pp}");
            let again = answer(&load_ranks(family, &set, &cuts), &set, &reference, 7);
            assert_eq!(
                again, got,
                "{family} tp={tp} pp={pp}: bits of another run in chunks of 7"
            );
        }
    }
}

#[test]
fn ranks_may_be_joined_by_streams_and_stages_by_their_caller() {
    let (set, reference) = (options(Isa::detect()), reference("qwen3"));
    let cuts = Cuts::even(&whole_spec("qwen3"), 2, 2);
    let ring = answer(&load_ranks("qwen3", &set, &cuts), &set, &reference, 9);
    assert_eq!(ring.tokens, reference.greedy);
    for way in [Way::Stream, Way::Carried] {
        let ranks = load_ranks_by(way, "qwen3", &set, &cuts);
        assert_eq!(answer(&ranks, &set, &reference, 9), ring, "{way:?}");
    }
}

/// Activations in f32, bf16 and int8.
#[test]
fn a_group_on_several_hosts_has_the_bits_of_one_in_shared_memory() {
    let models = [
        ("llama", 4),
        ("gptoss", 3),
        ("deepseek3", 2),
        ("gpt2", 3),
        ("gemma3", 2),
    ];
    for ((numerics, kv), (family, tp)) in NUMERICS.into_iter().zip(models) {
        let set = Options {
            numerics,
            kv,
            ..options(Isa::detect())
        };
        let requests = requests(&mut Rng(7), 4);
        let cuts = Cuts::even(&whole_spec(family), tp, 1);
        let [memory, streams] = [Way::Ring, Way::Stream].map(|way| {
            let ranks = load_ranks_by(way, family, &set, &cuts);
            let mut sizes = Rng(8);
            run(&ranks, &set, &requests, || 1 + sizes.below(20))
        });
        assert_eq!(streams, memory, "{family} {numerics:?}");
    }
}

fn requests(rng: &mut Rng, count: usize) -> Vec<Request> {
    let mut request = || Request {
        prompt: (0..1 + rng.below(60))
            .map(|_| rng.below(VOCAB) as i32)
            .collect(),
        new_tokens: 1 + rng.below(15),
        sampling: GREEDY,
        logprobs: 3,
    };
    (0..count).map(|_| request()).collect()
}

/// Quantised weights too: partitions within groups of 32 (the inner width of `llama` is one group)
/// share the group's scale.
#[test]
fn a_batch_on_a_grid_is_each_request_alone_bit_for_bit() {
    for (family, (numerics, kv)) in ["mistral", "qwen2", "llama3", "qwen3", "llama"]
        .into_iter()
        .zip(NUMERICS)
    {
        let set = Options {
            numerics,
            kv,
            ..options(Isa::detect())
        };
        let requests = requests(&mut Rng(3), 8);
        let cuts = Cuts::even(&whole_spec(family), 2, 2);
        let ranks = load_ranks(family, &set, &cuts);
        let one = |r: &Request| run(&ranks, &set, std::slice::from_ref(r), || 1000).remove(0);
        let alone: Vec<Answer> = requests.iter().map(one).collect();
        let mut sizes = Rng(4);
        let together = run(&ranks, &set, &requests, || 1 + sizes.below(20));
        assert_eq!(together, alone, "{family} {numerics:?}");
    }
}

/// Mean difference of the prompts' log-probabilities.
fn drift(a: &[Answer], b: &[Answer]) -> f64 {
    let pairs = a
        .iter()
        .zip(b)
        .flat_map(|(a, b)| a.prompt.iter().zip(&b.prompt));
    let off: Vec<f64> = pairs
        .map(|(a, b)| f64::from((a.logprob - b.logprob).abs()))
        .collect();
    off.iter().sum::<f64>() / off.len() as f64
}

/// A group of 32 across a partition boundary is on both ranks, each with its own activation scale.
/// The rounding differs but is not worse.
#[test]
fn cuts_through_quantised_groups_are_no_further_from_exact_weights() {
    let exact = options(Isa::detect());
    for (numerics, kv) in &NUMERICS[3..] {
        for family in FAMILIES {
            let set = Options {
                numerics: *numerics,
                kv: *kv,
                ..exact
            };
            let requests = requests(&mut Rng(5), 12);
            let truth = run(&load(family, &exact), &exact, &requests, || 1000);
            let whole = drift(&run(&load(family, &set), &set, &requests, || 1000), &truth);
            for tp in [2, 3] {
                let cuts = Cuts::even(&whole_spec(family), tp, 1);
                let ranks = load_ranks(family, &set, &cuts);
                let cut = drift(&run(&ranks, &set, &requests, || 1000), &truth);
                println!("{family} {numerics:?} tp={tp}: off by {cut:.4}, whole by {whole:.4}");
                assert!(
                    cut < 1.25 * whole + 1e-3,
                    "{family} {numerics:?} tp={tp}: {cut}, whole {whole}"
                );
            }
        }
    }
}

/// Ascending cuts of `0..whole` into `parts` non-empty parts.
fn cuts(whole: usize, parts: usize) -> impl Strategy<Value = Vec<usize>> {
    let inner = proptest::sample::subsequence((1..whole).collect::<Vec<_>>(), parts - 1);
    inner.prop_map(move |inner| [vec![0], inner, vec![whole]].concat())
}

fn any_cuts() -> impl Strategy<Value = (&'static str, Cuts)> {
    (
        proptest::sample::select(&FAMILIES[..]),
        1usize..=4,
        1usize..=3,
    )
        .prop_flat_map(|(family, tp, pp)| {
            let spec = whole_spec(family);
            let layers = proptest::collection::vec(0..=spec.depth(), pp - 1);
            let parts = (
                layers,
                cuts(spec.heads().heads, tp),
                spec.widths()
                    .into_iter()
                    .map(|width| cuts(width, tp))
                    .collect::<Vec<_>>(),
                cuts(spec.vocab, tp),
            );
            parts.prop_map(move |(mut layers, heads, mlp, vocab)| {
                layers.extend([0, spec.depth()]);
                layers.sort_unstable();
                (
                    family,
                    Cuts {
                        layers,
                        heads,
                        mlp,
                        experts: None,
                        vocab,
                    },
                )
            })
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_cut_will_do((family, cuts) in any_cuts()) {
        let (set, reference) = (options(Isa::detect()), reference(family));
        let got = answer(&load_ranks(family, &set, &cuts), &set, &reference, 1000);
        let (off, limit) = (distance(&got, &reference), 1e-3 * largest(&reference));
        prop_assert!(off <= limit, "{family} {cuts:?}: off by {off}, limit {limit}");
        prop_assert_eq!(got.tokens, reference.greedy);
    }
}

fn plan(tokens: &[i32]) -> StepPlan {
    StepPlan {
        slots: vec![0],
        starts: vec![0],
        lengths: vec![tokens.len() as i32],
        tokens: tokens.to_vec(),
        sample: vec![1],
        kept: vec![0],
        added: vec![0],
        added_offsets: vec![0, 1],
        ..StepPlan::default()
    }
}

/// An invalid plan is an error on every rank and has no effect; a rank that exits ends the waits of
/// the others.
#[test]
fn no_rank_waits_for_one_that_cannot_go_on() {
    let set = options(Isa::detect());
    let cuts = Cuts::even(&whole_spec("llama"), 2, 2);
    let mut ranks: Ranks = load_ranks("llama", &set, &cuts);
    for decoder in &ranks.decoders {
        let error = common::step(decoder, plan(&[1, 2, 9999])).err().unwrap();
        assert!(matches!(error, DecoderError::Plan(_)), "{error}");
    }
    let reference = reference("llama");
    assert_eq!(
        answer(&ranks, &set, &reference, 50).tokens,
        reference.greedy
    );
    // Rank 3 is lost: its supervisor ends the waits of the others.
    drop(ranks.decoders.pop());
    let tickets: Vec<_> = ranks
        .decoders
        .iter()
        .map(|d| d.submit(plan(&[1, 2])))
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(100));
    ranks.end("rank 3 was lost");
    let results = tickets
        .iter()
        .map(|t| t.result(std::time::Duration::from_secs(60)).unwrap());
    let errors: Vec<String> = results
        .filter_map(|r| r.err().map(|e| e.to_string()))
        .collect();
    assert!(
        !errors.is_empty() && errors.iter().all(|e| e.contains("rank 3 was lost")),
        "{errors:?}"
    );
}

#[test]
fn cuts_that_do_not_cover_the_decoder_are_refused() {
    let spec = whole_spec("llama");
    let good = json!({
        "rank": 0, "stage": [0, 1], "layers": [0, 2], "heads": [0, 3, 6], "mlp": [[0, 16, 32]],
        "vocab": [0, 128, 256],
    });
    Shard::parse(&good.to_string(), &spec).unwrap();
    for (key, value, said) in [
        ("rank", json!(2), "rank = 2 of 2"),
        ("stage", json!([1, 1]), "stage = 1 of 1"),
        ("layers", json!([0, 3]), "0..3 of 2 layers"),
        ("layers", json!([2, 1]), "2..1 of 2 layers"),
        ("heads", json!([0, 6, 6]), "none of them empty"),
        ("heads", json!([0, 5]), "does not cut 0..6"),
        ("mlp", json!([[0, 32]]), "into 2 parts"),
        ("mlp", json!([]), "has [32]"),
        ("experts", json!([0, 1, 2]), "does not cut 0..0"),
        ("vocab", json!([1, 128, 256]), "does not cut 0..256"),
        ("vocab", json!([]), "does not cut"),
        ("other", json!(1), "unknown field"),
    ] {
        let mut bad = good.clone();
        bad[key] = value;
        let error = Shard::parse(&bad.to_string(), &spec)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains(said), "{bad}: {error}");
    }
}
