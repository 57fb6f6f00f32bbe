//! Words and token ids: made up, or those of a real model.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use penstock_openai::ApiError;
use penstock_text::{TextError, TextModel};
use serde_json::{Map, Value};

use crate::random;

/// End of text of made-up words.
const WORDS_EOS: u32 = 0;
/// Words of a real vocabulary that answers are made of.
const MOST_WORDS: usize = 4096;

enum Source {
    /// Whitespace-separated words: "t17" is token 17, any other word is hashed into the vocabulary.
    Words,
    Model(Box<TextModel>),
}

/// Text to ids and back.
pub(crate) struct Vocabulary {
    source: Source,
    size: u32,
    eos: u32,
    /// Ids that answers are made of.
    words: Arc<[u32]>,
    /// Texts of those by id, empty for others. None needs an escape in JSON.
    texts: Vec<Box<str>>,
}

impl Vocabulary {
    pub(crate) fn made_up(size: u32) -> Self {
        let text = |id| match id {
            WORDS_EOS => Box::default(),
            id => format!(" t{id}").into_boxed_str(),
        };
        Self {
            source: Source::Words,
            size,
            eos: WORDS_EOS,
            words: (WORDS_EOS + 1..size).collect(),
            texts: (0..size).map(text).collect(),
        }
    }

    /// The tokenizer of a GGUF file or a Hugging Face directory.
    pub(crate) fn of_model(path: &Path) -> Result<Self, TextError> {
        let model = TextModel::open(path, None)?;
        let size = model.tokenizer.vocab_size() as u32;
        let words = plain_words(&model);
        let mut texts = vec![Box::default(); size as usize];
        for id in &words {
            texts[*id as usize] = model.tokenizer.token_text(*id).into_boxed_str();
        }
        Ok(Self {
            size,
            eos: model.tokenizer.eos().unwrap_or_default(),
            words: if words.is_empty() {
                (0..size).collect()
            } else {
                words.into()
            },
            texts,
            source: Source::Model(Box::new(model)),
        })
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    pub(crate) fn eos(&self) -> u32 {
        self.eos
    }

    pub(crate) fn words(&self) -> Arc<[u32]> {
        self.words.clone()
    }

    /// Text of a token of an answer, as it stands in JSON.
    pub(crate) fn text(&self, id: u32) -> &str {
        self.texts.get(id as usize).map_or("", AsRef::as_ref)
    }

    pub(crate) fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, ApiError> {
        match &self.source {
            Source::Words => Ok(text
                .split_whitespace()
                .map(|word| self.word(word))
                .collect()),
            Source::Model(model) => model
                .tokenizer
                .encode(text, add_special)
                .map_err(|error| refused("prompt", &error)),
        }
    }

    /// Ids of a conversation. Made-up words have no template: roles count as words.
    pub(crate) fn encode_chat(
        &self,
        messages: &Value,
        add_generation_prompt: bool,
        kwargs: &Map<String, Value>,
    ) -> Result<Vec<u32>, ApiError> {
        if let Source::Model(model) = &self.source {
            return model
                .encode_chat(messages, add_generation_prompt, None, kwargs)
                .map_err(|error| refused("messages", &error));
        }
        let mut ids = Vec::new();
        for message in messages.as_array().into_iter().flatten() {
            for field in ["role", "content"] {
                let text = message.get(field).and_then(Value::as_str);
                ids.extend(self.encode(text.unwrap_or_default(), false)?);
            }
        }
        if add_generation_prompt {
            ids.push(self.word("assistant"));
        }
        Ok(ids)
    }

    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        match &self.source {
            Source::Words => ids.iter().fold(String::new(), |mut text, id| {
                // Writing to a string cannot fail.
                let _ = write!(text, " t{id}");
                text
            }),
            Source::Model(model) => model.tokenizer.decode(ids, false),
        }
    }

    /// One token as text.
    pub(crate) fn token_text(&self, id: u32) -> String {
        match &self.source {
            Source::Words => format!(" t{id}"),
            Source::Model(model) => model.tokenizer.token_text(id),
        }
    }

    fn word(&self, word: &str) -> u32 {
        let numbered = word
            .strip_prefix('t')
            .filter(|digits| !digits.starts_with(['0', '+']) || *digits == "0");
        match numbered.and_then(|digits| digits.parse::<u32>().ok()) {
            Some(id) if id < self.size => id,
            _ => 1 + (random::of_text(word) % u64::from(self.size - 1)) as u32,
        }
    }
}

fn refused(field: &'static str, error: &TextError) -> ApiError {
    ApiError::invalid(field, format!("{error}."))
}

/// Tokens that are a space and a word of ASCII letters and stay one token wherever they stand.
fn plain_words(model: &TextModel) -> Vec<u32> {
    let tokenizer = &model.tokenizer;
    let is_plain = |id: &u32| {
        let text = tokenizer.token_text(*id);
        let word = text.strip_prefix(' ').unwrap_or_default();
        !word.is_empty()
            && word.bytes().all(|byte| byte.is_ascii_alphabetic())
            && tokenizer.encode(&text, false).is_ok_and(|ids| ids == [*id])
    };
    let ids = 0..tokenizer.vocab_size() as u32;
    ids.filter(is_plain).take(MOST_WORDS).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn generated_text_is_read_back_as_its_tokens() {
        let vocabulary = Vocabulary::made_up(500);
        let ids: Vec<u32> = (0..500).collect();
        assert_eq!(
            vocabulary.encode(&vocabulary.decode(&ids), true).unwrap(),
            ids
        );
        let answer: String = [5, 7, 499].iter().map(|id| vocabulary.text(*id)).collect();
        assert_eq!(answer, " t5 t7 t499");
        assert_eq!(vocabulary.text(vocabulary.eos()), "");
    }

    #[test]
    fn other_words_are_one_token_each_and_equal_ones_equal() {
        let vocabulary = Vocabulary::made_up(500);
        let ids = vocabulary
            .encode("the cat t500 t01 t+1 the\n cat", true)
            .unwrap();
        assert_eq!(ids.len(), 7);
        assert_eq!((ids[0], ids[1]), (ids[5], ids[6]));
        assert!(ids.iter().all(|id| (1..500).contains(id)));
    }

    #[test]
    fn conversations_count_roles() {
        let vocabulary = Vocabulary::made_up(500);
        let messages =
            json!([{"role": "user", "content": "a b"}, {"role": "assistant", "content": null}]);
        let count = |generate| {
            let ids = vocabulary.encode_chat(&messages, generate, &Map::new());
            ids.unwrap().len()
        };
        assert_eq!((count(false), count(true)), (4, 5));
    }
}
