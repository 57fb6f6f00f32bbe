//! Text without a model: a token is a word between spaces.

use std::borrow::Cow;

use crate::chat::TemplateSources;
use crate::tokenizer::{Encoder, Entry, Roles, Surface, Tokenizer};
use crate::{ChatTemplate, SpecialTokens, TextError, TextModel};

/// Roles and contents of the messages, one after another.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }} {{ m.content or '' }} {% endfor %}\
    {% if add_generation_prompt %}assistant{% endif %}";

impl TextModel {
    /// A vocabulary of `size` made-up words, at least 2: `t17` is token 17, any other word is
    /// hashed to an id above 0. Token 0 ends a text.
    ///
    /// # Errors
    /// None that depends on the input: the template is a constant.
    pub fn of_words(size: u32) -> Result<Self, TextError> {
        let entries = (0..size as usize).map(|id| Entry {
            text: Cow::Owned(format!(" t{id}")),
            added: true,
            special: id == 0,
        });
        let roles = Roles {
            eos: Some(0),
            ..Roles::default()
        };
        let tokenizer = Tokenizer::assemble(Encoder::Words, Surface::ByteLevel, entries, roles);
        let sources = TemplateSources {
            default: TEMPLATE.to_owned(),
            with_tools: None,
        };
        Ok(Self {
            tokenizer: tokenizer.into(),
            template: Some(ChatTemplate::new(sources, SpecialTokens::new())?),
        })
    }
}

/// Ids of the words of `text` in a vocabulary of `size`.
pub(crate) fn encode(text: &str, size: u32) -> Vec<u32> {
    text.split_whitespace().map(|word| id(word, size)).collect()
}

/// The text of a token with this id.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn generated_text_is_read_back_as_its_tokens() {
        let words = TextModel::of_words(500).unwrap().tokenizer;
        let ids: Vec<u32> = (0..500).collect();
        assert_eq!(words.encode(&words.decode(&ids, false), true).unwrap(), ids);
        assert_eq!(words.decode(&[5, 7, 499, 0], true), " t5 t7 t499");
        assert_eq!((words.vocab_size(), words.eos()), (500, Some(0)));
        assert_eq!(words.token_id("t7"), Some(7));
    }

    #[test]
    fn other_words_are_one_token_each_and_equal_ones_equal() {
        let words = TextModel::of_words(500).unwrap().tokenizer;
        let ids = words
            .encode("the cat t500 t01 t+1 the\n cat", true)
            .unwrap();
        assert_eq!(ids.len(), 7);
        assert_eq!((ids[0], ids[1]), (ids[5], ids[6]));
        assert!(ids.iter().all(|id| (1..500).contains(id)));
    }

    #[test]
    fn conversations_count_roles() {
        let text = TextModel::of_words(500).unwrap();
        let messages =
            json!([{"role": "user", "content": "a b"}, {"role": "assistant", "content": null}]);
        let count = |generate| {
            let ids = text.encode_chat(&messages, generate, None, &Map::new());
            ids.unwrap().len()
        };
        assert_eq!((count(false), count(true)), (4, 5));
    }
}
