//! Drafts, tokens known only to the decoder, updates of block tables, and blocks freed behind a
//! window do not change a bit of any answer.

use crate::common::ranks::{Cuts, load_ranks};
use crate::common::traffic::{Style, Traffic};
use crate::common::{
    Answer, Compute, FAMILIES, GREEDY, NUMERICS, Request, Rng, load, options, run, spec,
};
use penstock_decoder::{DecoderSpec, Options};
use penstock_kernels::Isa;
use penstock_wire::SamplingParams;

fn requests(rng: &mut Rng, count: usize) -> Vec<Request> {
    let mut one = |i: usize| {
        let sampled = SamplingParams {
            temperature: 0.8,
            top_k: 20,
            top_p: 0.9,
            seed: i as u64,
            choice: 1,
            logprobs: None,
            ..GREEDY
        };
        Request {
            prompt: (0..1 + rng.below(80))
                .map(|_| rng.below(256) as i32)
                .collect(),
            new_tokens: 1 + rng.below(30),
            sampling: if i.is_multiple_of(2) { GREEDY } else { sampled },
            logprobs: 3,
        }
    };
    (0..count).map(&mut one).collect()
}

fn check(what: &str, decoder: &impl Compute, options: &Options, style: Style, seed: u64) {
    let mut rng = Rng(seed);
    let requests = requests(&mut rng, 12);
    let right: Vec<Answer> = run(decoder, options, &requests, || 1000);
    let traffic = Traffic {
        decoder,
        options,
        requests: &requests,
        right: &right,
        style,
        rng,
    };
    for (i, (got, want)) in traffic.run().iter().zip(&right).enumerate() {
        assert_eq!(got.tokens, want.tokens, "{what}, {style:?}: tokens of {i}");
        assert!(got == want, "{what}, {style:?}: log-probabilities of {i}");
    }
}

const PLAIN: Style = Style {
    drafts: false,
    depth: 1,
    deltas: true,
    chunk: 40,
};

fn styles() -> [Style; 4] {
    let (drafts, depth) = (true, 2);
    let whole = Style {
        deltas: false,
        ..PLAIN
    };
    [
        Style { drafts, ..PLAIN },
        Style { depth, ..PLAIN },
        Style {
            drafts,
            depth,
            ..PLAIN
        },
        Style {
            drafts,
            depth,
            ..whole
        },
    ]
}

#[test]
fn every_family_answers_as_in_plain_steps() {
    for (seed, family) in FAMILIES.into_iter().enumerate() {
        let (numerics, kv) = NUMERICS[seed % NUMERICS.len()];
        for (threads, block_size) in [(1, 16), (2, 48)] {
            let options = Options {
                numerics,
                kv,
                threads,
                block_size,
                ..options(Isa::detect())
            };
            let decoder = load(family, &options);
            for style in styles() {
                check(family, &decoder, &options, style, seed as u64);
            }
        }
    }
}

/// Traffic with many seeds on a model with two KV groups, one of which has a window.
#[test]
fn changes_of_tables_are_whole_tables() {
    let options = options(Isa::detect());
    let decoder = load("alternating", &options);
    assert_eq!(decoder.seen().len(), 2);
    for seed in 100..130 {
        for deltas in [true, false] {
            let style = Style {
                drafts: seed % 2 == 0,
                depth: 1 + seed as usize % 3,
                deltas,
                chunk: 1 + seed as usize % 50,
            };
            check("alternating", &decoder, &options, style, seed);
        }
    }
}

#[test]
fn ranks_of_a_group_share_the_tokens() {
    let options = options(Isa::detect());
    for family in ["alternating", "llama", "gpt2"] {
        let whole = DecoderSpec::parse(&spec(family).0.to_string()).unwrap();
        let ranks = load_ranks(family, &options, &Cuts::even(&whole, 2, 1));
        for style in styles() {
            check(family, &ranks, &options, style, 7);
        }
    }
}
