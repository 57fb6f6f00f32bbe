//! Vocabulary of an engine: synthetic words, or that of a real model.

use std::path::Path;
use std::sync::Arc;

use penstock_tokenizer::{TextError, TextModel};

/// Maximum number of a real vocabulary's words that answers use.
const MOST_WORDS: usize = 4096;

/// A tokenizer, and the token ids of which answers consist.
#[derive(Debug, Clone)]
pub(crate) struct Vocabulary {
    pub(crate) text: Arc<TextModel>,
    pub(crate) words: Arc<[u32]>,
    pub(crate) eos: u32,
    pub(crate) size: u32,
}

impl Vocabulary {
    pub(crate) fn made_up(size: u32) -> Result<Self, TextError> {
        let text = TextModel::of_words(size)?;
        Ok(Self::new(text, (1..size).collect()))
    }

    /// Loads the tokenizer of a GGUF file or a Hugging Face directory.
    pub(crate) fn of_model(path: &Path) -> Result<Self, TextError> {
        let text = TextModel::open(path, None)?;
        let words = plain_words(&text);
        Ok(Self::new(text, words))
    }

    fn new(text: TextModel, words: Vec<u32>) -> Self {
        let size = text.tokenizer.vocab_size() as u32;
        Self {
            eos: text.tokenizer.eos().unwrap_or_default(),
            words: if words.is_empty() {
                (0..size).collect()
            } else {
                words.into()
            },
            size,
            text: Arc::new(text),
        }
    }
}

/// Ids of tokens that are a space and an ASCII word, and remain a single token in any context.
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
