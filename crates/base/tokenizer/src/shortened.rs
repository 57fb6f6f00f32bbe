//! Truncation of token ids.

/// Truncates `ids` to at most `most` tokens. `ids` are the tokens `bare` of a text, enclosed in
/// special tokens. The special tokens are kept, together with the first tokens of the text (with
/// `keep_last`, the last ones).
pub fn shortened(ids: &[u32], bare: &[u32], most: usize, keep_last: bool) -> Vec<u32> {
    let special = ids.len().saturating_sub(bare.len());
    let lead = (0..=special).find(|lead| ids[*lead..].starts_with(bare));
    let (before, text, after) = match lead {
        Some(lead) => (&ids[..lead], bare, &ids[lead + bare.len()..]),
        None => (&[][..], ids, &[][..]),
    };
    let room = most.saturating_sub(before.len() + after.len());
    let room = room.min(text.len());
    let text = match keep_last {
        true => &text[text.len() - room..],
        false => &text[..room],
    };
    let mut kept = [before, text, after].concat();
    kept.truncate(most);
    kept
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn special_tokens_around_a_shortened_text_stay() {
        let (ids, bare) = ([1, 10, 11, 12, 13, 2], [10, 11, 12, 13]);
        assert_eq!(shortened(&ids, &bare, 4, false), [1, 10, 11, 2]);
        assert_eq!(shortened(&ids, &bare, 4, true), [1, 12, 13, 2]);
        assert_eq!(shortened(&bare, &bare, 3, true), [11, 12, 13]);
        // If `ids` does not contain `bare`, `ids` is truncated as a whole.
        assert_eq!(shortened(&ids, &[9], 2, false), [1, 10]);
        assert_eq!(shortened(&ids, &bare, 1, false), [1]);
    }
}
