//! Synthetic prompts, generated from a trace's block names.

use super::setup::Arrival;
use crate::random;

/// Links (hashes of prefixes) of a prompt, one for each full block. Empty if the trace names no
/// blocks.
pub(super) fn links(arrival: &Arrival, block_tokens: u32) -> Vec<u64> {
    let full = (arrival.input_tokens / block_tokens) as usize;
    let mut link = 0;
    let fold = |name: &u64| {
        link = random::join(link, *name);
        link
    };
    arrival.blocks.iter().take(full).map(fold).collect()
}

/// Token ids of a prompt, below `vocab_size`. Blocks of the same name have equal tokens; blocks
/// without a name are unique to request number `number`.
pub(super) fn tokens(
    arrival: &Arrival,
    number: usize,
    block_tokens: u32,
    vocab_size: u32,
) -> Vec<u32> {
    let mut prompt = Vec::with_capacity(arrival.input_tokens as usize);
    let mut at = 0;
    while prompt.len() < arrival.input_tokens as usize {
        let key = match arrival.blocks.get(at) {
            Some(name) => random::join(1, *name),
            None => random::join(random::join(2, number as u64), at as u64),
        };
        let left = arrival.input_tokens as usize - prompt.len();
        let many = left.min(block_tokens as usize) as u64;
        let token = |place: u64| {
            let mixed = key.wrapping_add(place.wrapping_mul(0x9E37_79B9_7F4A_7C15));
            // The high half of a product with the vocabulary size reduces the range without a
            // division.
            (((mixed >> 32) * u64::from(vocab_size)) >> 32) as u32
        };
        prompt.extend((0..many).map(token));
        at += 1;
    }
    prompt
}
