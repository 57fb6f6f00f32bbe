//! `tokenizer.ggml.model = gpt2`: byte-level BPE.

use tokenizers::Tokenizer as HfTokenizer;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::Pipeline;
use super::fields::{Fields, Vocabulary};
use super::pre::PreTokenizer;
use crate::TextError;
use crate::tokenizer::Surface;

const MERGES: &str = "tokenizer.ggml.merges";

pub(super) fn pipeline(
    fields: &Fields<'_>,
    vocabulary: &Vocabulary<'_>,
) -> Result<Pipeline, TextError> {
    let pre = PreTokenizer::named(fields.required_str("tokenizer.ggml.pre")?)?;
    let ids: Vocab = vocabulary
        .iter()
        .map(|(id, text, _)| (text.to_owned(), id))
        .collect();
    let inner = byte_level(pre, ids, merges(fields)?);
    Ok(Pipeline {
        inner: inner.map_err(|reason| TextError::metadata(MERGES, reason))?,
        surface: Surface::ByteLevel,
        add_bos_by_default: pre.add_bos,
    })
}

/// Builds byte-level BPE from tokens and merges, without added tokens.
///
/// # Errors
/// The merges are invalid.
pub(crate) fn byte_level(
    pre: &PreTokenizer,
    ids: Vocab,
    merges: Merges,
) -> Result<HfTokenizer, String> {
    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|error| error.to_string())?;
    let mut inner = HfTokenizer::new(model);
    inner.with_normalizer(pre.normalizer());
    inner.with_pre_tokenizer(Some(pre.build().map_err(|error| error.to_string())?));
    inner.with_decoder(Some(ByteLevel::default()));
    Ok(inner)
}

/// Merges in order of rank; each entry is two tokens separated by one space.
fn merges(fields: &Fields<'_>) -> Result<Merges, TextError> {
    let lines = fields.strings(MERGES)?;
    let pairs = lines
        .iter()
        .enumerate()
        .map(|(rank, line)| match line.split_once(' ') {
            Some((left, right))
                if !left.is_empty() && !right.is_empty() && !right.contains(' ') =>
            {
                Ok((left.to_owned(), right.to_owned()))
            }
            _ => Err(TextError::metadata(
                MERGES,
                format!("entry {rank} is {line:?}, not two tokens"),
            )),
        });
    pairs.collect()
}
