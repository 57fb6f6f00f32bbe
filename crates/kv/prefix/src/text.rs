//! Hash chains over text: prefixes of a prompt by bytes, without a tokenizer.
//!
//! A gateway serves many models and has no tokenizer for them. Equal bytes give equal tokens, so
//! chunks of [`TEXT_UNIT`] bytes identify what a replica has computed. These links are hints for
//! one process only; the block-hash rule does not use them.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes covered by one link: about 64 tokens of English.
pub const TEXT_UNIT: usize = 256;

/// Seed of a chain. Different models, adapters or cache salts give chains without common links.
pub fn text_seed(parts: &[&[u8]]) -> u64 {
    parts.iter().fold(0, |seed, part| {
        xxh3_64_with_seed(part, seed.wrapping_add(1))
    })
}

/// Links of the full units of the concatenated `texts`; a trailing partial unit is dropped.
pub fn text_chain(seed: u64, texts: &[&[u8]]) -> Vec<u64> {
    let mut chain = Chain {
        link: seed,
        links: Vec::with_capacity(texts.iter().map(|text| text.len()).sum::<usize>() / TEXT_UNIT),
        partial: Vec::new(),
    };
    texts.iter().for_each(|text| chain.take(text));
    chain.links
}

struct Chain {
    link: u64,
    links: Vec<u64>,
    /// The incomplete unit, which may span texts.
    partial: Vec<u8>,
}

impl Chain {
    fn take(&mut self, mut text: &[u8]) {
        if !self.partial.is_empty() {
            let missing = (TEXT_UNIT - self.partial.len()).min(text.len());
            self.partial.extend_from_slice(&text[..missing]);
            text = &text[missing..];
            if self.partial.len() < TEXT_UNIT {
                return;
            }
            let unit = std::mem::take(&mut self.partial);
            self.add(&unit);
        }
        let units = text.chunks_exact(TEXT_UNIT);
        self.partial.extend_from_slice(units.remainder());
        units.for_each(|unit| self.add(unit));
    }

    fn add(&mut self, unit: &[u8]) {
        self.link = xxh3_64_with_seed(unit, self.link);
        self.links.push(self.link);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn cuts_do_not_matter_and_links_name_whole_prefixes(
            text in prop::collection::vec(any::<u8>(), 0..2000),
            cuts in prop::collection::vec(0usize..2000, 0..4),
            changed in 0usize..2000,
        ) {
            let whole = text_chain(7, &[&text]);
            prop_assert_eq!(whole.len(), text.len() / TEXT_UNIT);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            prop_assert_eq!(&text_chain(7, &parts), &whole);
            if changed < text.len() {
                let mut other = text.clone();
                other[changed] ^= 1;
                let other = text_chain(7, &[&other]);
                let same = whole.iter().zip(&other).take_while(|(a, b)| a == b).count();
                prop_assert_eq!(same, (changed / TEXT_UNIT).min(whole.len()));
            }
        }
    }

    #[test]
    fn seeds_keep_chains_apart() {
        let text = [5u8; TEXT_UNIT];
        let seed = |parts: &[&[u8]]| text_chain(text_seed(parts), &[&text])[0];
        assert_ne!(seed(&[b"model", b""]), seed(&[b"model", b"salt"]));
        assert_ne!(seed(&[b"ab", b"c"]), seed(&[b"a", b"bc"]));
    }
}
