//! Log-probabilities of a decoder compared with reference logits.

use penstock_decoder::Options;
use penstock_wire::LogprobRow;

use super::{Answer, Compute, GREEDY, Reference, Request, run};

pub(crate) const VOCAB: usize = 256;

/// Log-probabilities of all tokens at every position of the reference's prompt and at its end, with
/// the greedy continuation.
pub(crate) fn answer(
    decoder: &impl Compute,
    options: &Options,
    reference: &Reference,
    chunk: impl FnMut() -> usize,
) -> Answer {
    let prompt = reference.tokens.clone();
    let request = Request {
        prompt,
        new_tokens: reference.greedy.len(),
        sampling: GREEDY,
        logprobs: VOCAB,
    };
    run(decoder, options, &[request], chunk).remove(0)
}

/// Rows at the prompt's positions, with all alternatives.
pub(crate) fn rows(answer: &Answer) -> impl Iterator<Item = &LogprobRow> {
    answer.prompt.iter()
}

pub(crate) fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let norm = logits.iter().map(|&v| f64::from(v).exp()).sum::<f64>().ln();
    logits.iter().map(|&v| f64::from(v) - norm).collect()
}

/// Largest difference from the reference's log-probabilities, over all positions and tokens.
pub(crate) fn distance(answer: &Answer, reference: &Reference) -> f64 {
    let mut worst = 0.0f64;
    assert_eq!(rows(answer).count(), reference.logits.len());
    for (row, logits) in rows(answer).zip(&reference.logits) {
        let want = log_softmax(logits);
        assert_eq!(row.alternatives.len(), VOCAB);
        for &(token, logprob) in &row.alternatives {
            worst = worst.max((f64::from(logprob) - want[token as usize]).abs());
        }
    }
    worst
}

pub(crate) fn largest_logit(reference: &Reference) -> f64 {
    reference
        .logits
        .iter()
        .flatten()
        .fold(0.0, |m, v| m.max(f64::from(v.abs())))
}
