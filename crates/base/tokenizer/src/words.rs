//! Encoding of the synthetic vocabulary: tokens are words separated by spaces.

/// Ids of the words in `text`, for a vocabulary of `size`.
pub(crate) fn encode(text: &str, size: u32) -> Vec<u32> {
    text.split_whitespace().map(|word| id(word, size)).collect()
}

/// The id in the name of a token `t<id>`.
pub(crate) fn number(word: &str) -> Option<u32> {
    let digits = word.strip_prefix('t')?;
    let canonical = digits == "0" || !digits.starts_with(['0', '+']);
    digits.parse().ok().filter(|_| canonical)
}

fn id(word: &str, size: u32) -> u32 {
    match number(word) {
        Some(id) if id < size => id,
        _ => 1 + (hash(word) % u64::from(size - 1)) as u32,
    }
}

/// FNV-1a.
fn hash(word: &str) -> u64 {
    word.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
    })
}
