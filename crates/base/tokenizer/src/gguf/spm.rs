//! `tokenizer.ggml.model = llama`: SentencePiece BPE with byte fallback.
//!
//! SentencePiece merges the adjacent pair with the highest score of the merged piece. This equals
//! BPE with all splits of all pieces into two as merges, ranked by the score of the whole piece.
//! Among the splits of one piece, the longer left part comes first, as in transformers' converter
//! of SentencePiece models.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as DecoderSequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence as NormalizerSequence};
use tokenizers::{NormalizerWrapper, Tokenizer as HfTokenizer};

use super::Pipeline;
use super::fields::{Fields, TokenType, Vocabulary};
use crate::TextError;
use crate::tokenizer::Surface;

const SPACE: &str = "\u{2581}";
const SCORES: &str = "tokenizer.ggml.scores";
const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
const EXTRA_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

pub(super) fn pipeline(
    fields: &Fields<'_>,
    vocabulary: &Vocabulary<'_>,
) -> Result<Pipeline, TextError> {
    refuse_normalisation(fields)?;
    let ids: Vocab = vocabulary
        .iter()
        .map(|(id, text, _)| (text.to_owned(), id))
        .collect();
    let merges = ranked_merges(vocabulary, fields.floats(SCORES)?, &ids)?;
    let mut builder = BPE::builder()
        .vocab_and_merges(ids, merges)
        .fuse_unk(true)
        .byte_fallback(true);
    if let Some((_, unknown, _)) = vocabulary
        .iter()
        .find(|(_, _, kind)| *kind == TokenType::Unknown)
    {
        builder = builder.unk_token(unknown.to_owned());
    }
    let model = builder.build().map_err(TextError::build)?;
    let space_prefix = fields.bool(SPACE_PREFIX)?.unwrap_or(true);
    let mut inner = HfTokenizer::new(model);
    inner.with_normalizer(Some(normalizer(space_prefix)?));
    inner.with_decoder(Some(decoder(space_prefix)?));
    let surface = Surface::Pieces {
        strip_space: space_prefix,
    };
    Ok(Pipeline {
        inner,
        surface,
        add_bos_by_default: true,
    })
}

/// SentencePiece normalisation beyond spaces is not supported; Llama and Mistral models have none.
fn refuse_normalisation(fields: &Fields<'_>) -> Result<(), TextError> {
    if fields.bool(EXTRA_SPACES)? == Some(true) {
        return Err(TextError::metadata(
            EXTRA_SPACES,
            "is true, which is not supported",
        ));
    }
    if fields.has(CHARSMAP) {
        return Err(TextError::metadata(
            CHARSMAP,
            "is present, which is not supported",
        ));
    }
    Ok(())
}

fn normalizer(space_prefix: bool) -> Result<NormalizerSequence, TextError> {
    let spaces = Replace::new(" ", SPACE).map_err(TextError::build)?;
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if space_prefix {
        steps.push(Prepend::new(SPACE.to_owned()).into());
    }
    steps.push(spaces.into());
    Ok(NormalizerSequence::new(steps))
}

fn decoder(space_prefix: bool) -> Result<DecoderSequence, TextError> {
    let spaces = Replace::new(SPACE, " ").map_err(TextError::build)?;
    let mut steps: Vec<DecoderWrapper> = vec![
        spaces.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    if space_prefix {
        steps.push(Strip::new(' ', 1, 0).into());
    }
    Ok(DecoderSequence::new(steps))
}

/// A split of a piece into two pieces that are tokens.
struct Cut<'a> {
    score: f64,
    left: &'a str,
    right: &'a str,
}

fn ranked_merges(
    vocabulary: &Vocabulary<'_>,
    scores: &[f64],
    ids: &Vocab,
) -> Result<Merges, TextError> {
    check_scores(scores, vocabulary.len())?;
    let mut cuts: Vec<Cut<'_>> = Vec::with_capacity(vocabulary.len() * 2);
    for ((_, text, kind), &score) in vocabulary.iter().zip(scores) {
        if kind != TokenType::Normal {
            continue;
        }
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                cuts.push(Cut { score, left, right });
            }
        }
    }
    cuts.sort_by(|a, b| {
        b.score
            .total_cmp(&a.score)
            .then(b.left.len().cmp(&a.left.len()))
    });
    Ok(cuts
        .into_iter()
        .map(|cut| (cut.left.to_owned(), cut.right.to_owned()))
        .collect())
}

/// Refuses equal scores for all tokens: the merge order would be undefined.
fn check_scores(scores: &[f64], tokens: usize) -> Result<(), TextError> {
    if scores.len() != tokens {
        return Err(TextError::metadata(
            SCORES,
            format!("has {} entries for {tokens} tokens", scores.len()),
        ));
    }
    if scores.iter().any(|score| score.is_nan()) {
        return Err(TextError::metadata(SCORES, "contains NaN"));
    }
    if scores.iter().all(|score| *score == scores[0]) {
        return Err(TextError::metadata(
            SCORES,
            "are all equal, so they rank no merges",
        ));
    }
    Ok(())
}
