//! Text offsets of the tokens of a completion.

use std::sync::Arc;

use penstock_tokenizer::{Detokenizer, Tokenizer};

/// Offsets of consecutive tokens, in characters. A token that is part of a character has the offset
/// of that character. A token that is omitted from the text has the offset of the next one.
pub(crate) struct Offsets {
    detokenizer: Detokenizer,
    characters: u32,
}

impl Offsets {
    /// Offsets in an output that begins after `characters` characters of text; `detokenizer` must
    /// be configured like the output's own.
    pub(crate) fn of_output(detokenizer: Detokenizer, characters: u32) -> Self {
        Self {
            detokenizer,
            characters,
        }
    }

    /// The offset of the next token.
    pub(crate) fn next(&mut self, token: u32) -> u32 {
        let offset = self.characters;
        self.characters += count(&self.detokenizer.push(token));
        offset
    }
}

/// Offsets of a prompt's tokens in its echoed `text`. Special tokens count only if the text
/// contains them: clients may have written some, and the tokenizer adds others.
pub(crate) fn of_prompt(tokenizer: &Arc<Tokenizer>, tokens: &[u32], text: &str) -> Vec<u32> {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), false, &[]);
    let (mut rest, mut characters) = (text, 0);
    let offset = |&token: &u32| {
        let offset = characters;
        let piece = detokenizer.push(token);
        match rest.strip_prefix(piece.as_str()) {
            Some(after) => rest = after,
            None if tokenizer.is_special(token) => return offset,
            None => {}
        }
        characters += count(&piece);
        offset
    };
    tokens.iter().map(offset).collect()
}

/// Counts the characters of a text.
pub(crate) fn count(text: &str) -> u32 {
    u32::try_from(text.chars().count()).unwrap_or(u32::MAX)
}
