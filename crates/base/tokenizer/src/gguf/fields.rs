//! Typed access to the metadata keys of a GGUF file. A wrong type, length or id is an error that
//! names the key.

use penstock_checkpoint::{Metadata, Value};

use crate::TextError;

const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";

pub(super) struct Fields<'a>(pub(super) &'a Metadata);

/// `tokenizer.ggml.token_type` of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    fn from_number(number: i64) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// Whether the token is matched literally in the text, before BPE.
    pub(super) fn is_added(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }

    /// Whether the token is not part of the output text: it is omitted when special tokens are
    /// skipped.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Self::Unknown | Self::Control)
    }
}

/// Token texts in id order, with their types.
pub(super) struct Vocabulary<'a> {
    texts: &'a [String],
    types: Vec<TokenType>,
}

impl Vocabulary<'_> {
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (u32, &str, TokenType)> {
        let typed = self.texts.iter().zip(&self.types);
        typed
            .enumerate()
            .map(|(id, (text, kind))| (id as u32, text.as_str(), *kind))
    }

    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// `id` must come from [`Fields::token_id`].
    pub(super) fn text(&self, id: u32) -> &str {
        &self.texts[id as usize]
    }
}

impl<'a> Fields<'a> {
    fn get<T>(
        &self,
        key: &'static str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, TextError> {
        let Some(value) = self.0.get(key) else {
            return Ok(None);
        };
        read(value)
            .map(Some)
            .ok_or_else(|| TextError::metadata(key, format!("is not {expected}")))
    }

    pub(super) fn str(&self, key: &'static str) -> Result<Option<&'a str>, TextError> {
        self.get(key, "a string", Value::as_str)
    }

    pub(super) fn bool(&self, key: &'static str) -> Result<Option<bool>, TextError> {
        self.get(key, "a bool", Value::as_bool)
    }

    pub(super) fn strings(&self, key: &'static str) -> Result<&'a [String], TextError> {
        self.get(key, "a list of strings", Value::as_strings)?
            .ok_or_else(|| missing(key))
    }

    pub(super) fn floats(&self, key: &'static str) -> Result<&'a [f64], TextError> {
        self.get(key, "a list of floats", Value::as_floats)?
            .ok_or_else(|| missing(key))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn required_str(&self, key: &'static str) -> Result<&'a str, TextError> {
        self.str(key)?.ok_or_else(|| missing(key))
    }

    /// A token id within the vocabulary.
    pub(super) fn token_id(
        &self,
        key: &'static str,
        vocabulary: &Vocabulary<'_>,
    ) -> Result<Option<u32>, TextError> {
        let Some(id) = self.get(key, "an integer", Value::as_int)? else {
            return Ok(None);
        };
        match u32::try_from(id) {
            Ok(small) if (small as usize) < vocabulary.len() => Ok(Some(small)),
            _ => {
                let reason = format!(
                    "token {id} is outside the vocabulary of {}",
                    vocabulary.len()
                );
                Err(TextError::metadata(key, reason))
            }
        }
    }

    /// Tokens and their types; all normal if the list of types is missing.
    pub(super) fn vocabulary(&self) -> Result<Vocabulary<'a>, TextError> {
        let texts = self.strings(TOKENS)?;
        if texts.is_empty() {
            return Err(TextError::metadata(TOKENS, "is empty"));
        }
        let types = match self.get(TOKEN_TYPE, "a list of integers", Value::as_ints)? {
            None => vec![TokenType::Normal; texts.len()],
            Some(numbers) if numbers.len() == texts.len() => token_types(numbers)?,
            Some(numbers) => {
                let reason = format!("has {} entries for {} tokens", numbers.len(), texts.len());
                return Err(TextError::metadata(TOKEN_TYPE, reason));
            }
        };
        Ok(Vocabulary { texts, types })
    }
}

fn token_types(numbers: &[i64]) -> Result<Vec<TokenType>, TextError> {
    let typed = numbers.iter().enumerate().map(|(id, &number)| {
        TokenType::from_number(number).ok_or_else(|| {
            TextError::metadata(TOKEN_TYPE, format!("token {id} has unknown type {number}"))
        })
    });
    typed.collect()
}

fn missing(key: &'static str) -> TextError {
    TextError::metadata(key, "is missing")
}
