//! Sampling parameters for the tests of this crate.

use penstock_wire::SamplingParams;

/// Logit processors built from a list of tokens.
pub(crate) fn logit_rules(tokens: &[u32], share: f32) -> SamplingParams {
    SamplingParams {
        min_p: share,
        repetition_penalty: 0.5 + share,
        presence_penalty: 2.0 * share,
        frequency_penalty: -share,
        bias: tokens.iter().map(|&token| (token, share)).collect(),
        allowed: tokens.to_vec(),
        banned: tokens.chunks(2).map(<[u32]>::to_vec).collect(),
        suppressed: tokens.to_vec(),
        suppressed_until: tokens.len() as u32,
        ..SamplingParams::default()
    }
}
