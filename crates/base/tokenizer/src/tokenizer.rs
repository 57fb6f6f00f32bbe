use std::borrow::Cow;

use tokenizers::{AddedToken, DecoderWrapper, Tokenizer as HfTokenizer};

use crate::TextError;
use crate::bytes::{ByteSymbols, TokenBytes, read_piece};
use crate::caught::caught;
use crate::words;

/// Maximum number of token ids, well above any published vocabulary. Limits memory: each id takes
/// some, even without a text.
const MAX_VOCABULARY: usize = 1 << 22;

/// Converts between text and token ids, for one model.
///
/// If tokens are byte strings (byte-level BPE, SentencePiece with byte fallback), ids are decoded
/// with a table of bytes. Other decoders (WordPiece, Metaspace, ...) use the `tokenizers` crate.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    surface: Surface,
    bytes: TokenBytes,
    special: Vec<bool>,
    bos: Option<u32>,
    eos: Option<u32>,
    added_by_rule: AddedIds,
}

/// How text is encoded to token ids.
#[derive(Debug)]
pub(crate) enum Encoder {
    Pipeline(Box<HfTokenizer>),
    /// See [`crate::TextModel::of_words`].
    Words,
}

/// How token ids are decoded to text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surface {
    /// The concatenated bytes of all tokens.
    ByteLevel,
    /// Like `ByteLevel`. `strip_space`: drops one space at the start, which the encoder inserted.
    Pieces { strip_space: bool },
    /// Through the decoder of the `tokenizers` crate.
    Decoder,
}

/// Ids that `encode(.., add_special = true)` adds around a text, in addition to the ids from the
/// pipeline's post-processor.
#[derive(Debug, Default)]
pub(crate) struct AddedIds {
    pub(crate) before: Option<u32>,
    pub(crate) after: Option<u32>,
}

/// An entry of the vocabulary, as declared in the model's files.
pub(crate) struct Entry<'a> {
    pub(crate) text: Cow<'a, str>,
    /// Whether the token is matched literally in the text, outside the BPE vocabulary.
    pub(crate) added: bool,
    /// Whether the token is omitted when special tokens are skipped.
    pub(crate) special: bool,
}

/// Ids of the tokens with a role, as declared in the model's files.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) added_by_rule: AddedIds,
}

impl Tokenizer {
    /// Combines a built `tokenizers` pipeline with its vocabulary in id order.
    pub(crate) fn assemble<'a>(
        encoder: Encoder,
        surface: Surface,
        entries: impl ExactSizeIterator<Item = Entry<'a>>,
        roles: Roles,
    ) -> Self {
        let mut special = Vec::with_capacity(entries.len());
        let mut bytes = TokenBytes::with_capacity(entries.len());
        let symbols = ByteSymbols::new();
        for entry in entries {
            special.push(entry.special);
            bytes.push(|out| match surface {
                _ if entry.added => out.extend_from_slice(entry.text.as_bytes()),
                Surface::ByteLevel => symbols.read(&entry.text, out),
                Surface::Pieces { .. } | Surface::Decoder => read_piece(&entry.text, out),
            });
        }
        let Roles {
            bos,
            eos,
            added_by_rule,
        } = roles;
        Self {
            encoder,
            surface,
            bytes,
            special,
            bos,
            eos,
            added_by_rule,
        }
    }

    /// Wraps a pipeline read from tokenizer.json, which also provides the vocabulary.
    pub(crate) fn from_pipeline(mut inner: HfTokenizer, roles: Roles) -> Result<Self, TextError> {
        inner.with_padding(None);
        inner.with_truncation(None).map_err(TextError::build)?;
        let surface = inner.get_decoder().map_or(Surface::Decoder, surface_of);
        let added = inner.get_added_tokens_decoder();
        let size = inner
            .get_vocab(true)
            .into_values()
            .max()
            .map_or(0, |last| last as usize + 1);
        if size > MAX_VOCABULARY {
            let last = size - 1;
            let reason = format!("it has token id {last}; at most {MAX_VOCABULARY} are taken");
            return Err(TextError::build(reason));
        }
        let entries: Vec<Entry<'static>> = (0..size)
            .map(|id| listed_entry(&inner, added.get(&(id as u32)), id as u32))
            .collect();
        let encoder = Encoder::Pipeline(Box::new(inner));
        Ok(Self::assemble(encoder, surface, entries.into_iter(), roles))
    }

    /// Token ids of `text`. Special tokens spelled out in the text are always recognised.
    /// `add_special` adds the tokens (BOS, EOS) that the model's rules put around a text.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the pre-tokenizer fails (runs of over a million equal characters).
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let pipeline = match &self.encoder {
            Encoder::Pipeline(pipeline) => pipeline,
            Encoder::Words => return Ok(words::encode(text, self.vocab_size() as u32)),
        };
        let encoding =
            caught(|| pipeline.encode_fast(text, add_special)).map_err(TextError::encode)?;
        let rule = if add_special {
            &self.added_by_rule
        } else {
            &AddedIds {
                before: None,
                after: None,
            }
        };
        let mut ids = Vec::with_capacity(encoding.len() + 2);
        ids.extend(rule.before);
        ids.extend_from_slice(encoding.get_ids());
        ids.extend(rule.after);
        Ok(ids)
    }

    /// Length of the longest token in bytes; `None` if a token may represent any text.
    pub(crate) fn longest_token(&self) -> Option<usize> {
        match self.encoder {
            Encoder::Pipeline(_) => Some(self.bytes.longest()),
            Encoder::Words => None,
        }
    }

    /// Text of `ids`. Invalid UTF-8 becomes U+FFFD; ids outside the vocabulary are skipped.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let Some(strip_space) = self.byte_surface() else {
            return self.decode_by_pipeline(ids, skip_special);
        };
        let mut bytes = Vec::with_capacity(ids.len() * 5);
        for &id in ids
            .iter()
            .filter(|&&id| !(skip_special && self.is_special(id)))
        {
            bytes.extend_from_slice(self.bytes.get(id).unwrap_or_default());
        }
        let start = usize::from(strip_space && bytes.first() == Some(&b' '));
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    pub(crate) fn decode_by_pipeline(&self, ids: &[u32], skip_special: bool) -> String {
        let lossy = || ids.iter().map(|&id| self.token_text(id)).collect();
        match &self.encoder {
            Encoder::Pipeline(pipeline) => {
                caught(|| pipeline.decode(ids, skip_special)).unwrap_or_else(|_| lossy())
            }
            Encoder::Words => lossy(),
        }
    }

    /// `Some(strip_space)` if text is the concatenation of [`Self::token_bytes`].
    pub(crate) fn byte_surface(&self) -> Option<bool> {
        match self.surface {
            Surface::ByteLevel => Some(false),
            Surface::Pieces { strip_space } => Some(strip_space),
            Surface::Decoder => None,
        }
    }

    /// Whether every text is the concatenation of its tokens' bytes.
    pub fn is_bytes(&self) -> bool {
        self.byte_surface().is_some()
    }

    /// Bytes of one token, possibly a part of a character; `None` outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        self.raw_bytes(id).map(Cow::Borrowed)
    }

    pub(crate) fn raw_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// [`Self::token_bytes`] as text, with U+FFFD for invalid UTF-8; empty outside the vocabulary.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.raw_bytes(id).unwrap_or_default()).into_owned()
    }

    /// Id of the token with exactly this text in the model's files.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        match &self.encoder {
            Encoder::Pipeline(pipeline) => pipeline.token_to_id(text),
            Encoder::Words => words::number(text).filter(|id| (*id as usize) < self.vocab_size()),
        }
    }

    /// True for control tokens (BOS, end of turn, ...), which `skip_special` omits.
    pub fn is_special(&self, id: u32) -> bool {
        usize::try_from(id)
            .ok()
            .and_then(|index| self.special.get(index))
            .copied()
            .unwrap_or(false)
    }

    /// Number of token ids with a text; the model's logits may have more columns.
    pub fn vocab_size(&self) -> usize {
        self.special.len()
    }

    /// The token at the start of a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token at the end of a text.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }
}

fn listed_entry(inner: &HfTokenizer, added: Option<&AddedToken>, id: u32) -> Entry<'static> {
    match added {
        Some(token) => Entry {
            text: Cow::Owned(token.content.clone()),
            added: true,
            special: token.special,
        },
        None => {
            let text = inner.id_to_token(id).unwrap_or_default();
            Entry {
                text: Cow::Owned(text),
                added: false,
                special: false,
            }
        }
    }
}

/// Detects decoders whose output is the concatenation of the tokens' bytes.
fn surface_of(decoder: &DecoderWrapper) -> Surface {
    if matches!(decoder, DecoderWrapper::ByteLevel(_)) {
        return Surface::ByteLevel;
    }
    let pieces = |strip: &str| {
        format!(
            r#"{{"type":"Sequence","decoders":[
                {{"type":"Replace","pattern":{{"String":"▁"}},"content":" "}},
                {{"type":"ByteFallback"}},{{"type":"Fuse"}}{strip}]}}"#
        )
    };
    let stated = serde_json::to_value(decoder).unwrap_or_default();
    let is = |text: String| {
        serde_json::from_str::<serde_json::Value>(&text).is_ok_and(|known| known == stated)
    };
    if is(pieces(
        r#",{"type":"Strip","content":" ","start":1,"stop":0}"#,
    )) {
        Surface::Pieces { strip_space: true }
    } else if is(pieces("")) {
        Surface::Pieces { strip_space: false }
    } else {
        Surface::Decoder
    }
}
