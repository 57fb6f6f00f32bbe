//! Tokenizer and chat template from the metadata of a GGUF file (keys `tokenizer.*` of the GGUF
//! specification).

mod bpe;
mod ends;
mod fields;
mod pre;
mod spm;

use std::borrow::Cow;

use penstock_checkpoint::{Metadata, one_line};
use tokenizers::{AddedToken, Tokenizer as HfTokenizer};

use crate::chat::TemplateSources;
use crate::tokenizer::{AddedIds, Encoder, Entry, Roles, Surface, Tokenizer};
use crate::{SpecialTokens, TextError};
pub(crate) use bpe::byte_level;
pub(crate) use ends::end_tokens;
use fields::{Fields, TokenType, Vocabulary};
pub(crate) use pre::PreTokenizer;

/// A pipeline of the `tokenizers` crate without added tokens, and its model type's rules for
/// decoding and for BOS.
struct Pipeline {
    inner: HfTokenizer,
    surface: Surface,
    add_bos_by_default: bool,
}

/// Builds the tokenizer from the metadata.
pub(crate) fn tokenizer(metadata: &Metadata) -> Result<Tokenizer, TextError> {
    let fields = Fields(metadata);
    let vocabulary = fields.vocabulary()?;
    let mut pipeline = match fields.required_str("tokenizer.ggml.model")? {
        "gpt2" => bpe::pipeline(&fields, &vocabulary)?,
        "llama" => spm::pipeline(&fields, &vocabulary)?,
        other => {
            return Err(TextError::UnknownTokenizerModel {
                name: one_line(other),
            });
        }
    };
    let added: Vec<AddedToken> = vocabulary
        .iter()
        .filter(|(_, _, kind)| kind.is_added())
        .map(added_token)
        .collect();
    pipeline.inner.add_tokens(&added);
    let roles = roles(&fields, &vocabulary, pipeline.add_bos_by_default)?;
    let entries = vocabulary.iter().map(|(_, text, kind)| Entry {
        text: Cow::Borrowed(text),
        added: kind.is_added(),
        special: kind.is_special(),
    });
    Ok(Tokenizer::assemble(
        Encoder::Pipeline(Box::new(pipeline.inner)),
        pipeline.surface,
        entries,
        roles,
    ))
}

/// With `normalized(false)`, the text of a special token is matched literally, before
/// normalisation.
fn added_token((_, text, kind): (u32, &str, TokenType)) -> AddedToken {
    AddedToken::from(text, kind.is_special()).normalized(false)
}

fn roles(
    fields: &Fields<'_>,
    vocabulary: &Vocabulary<'_>,
    add_bos: bool,
) -> Result<Roles, TextError> {
    let bos = fields.token_id("tokenizer.ggml.bos_token_id", vocabulary)?;
    let eos = fields.token_id("tokenizer.ggml.eos_token_id", vocabulary)?;
    let before = rule_id(fields, "tokenizer.ggml.add_bos_token", add_bos, bos)?;
    let after = rule_id(fields, "tokenizer.ggml.add_eos_token", false, eos)?;
    Ok(Roles {
        bos,
        eos,
        added_by_rule: AddedIds { before, after },
    })
}

fn rule_id(
    fields: &Fields<'_>,
    key: &'static str,
    by_default: bool,
    id: Option<u32>,
) -> Result<Option<u32>, TextError> {
    let stated = fields.bool(key)?;
    if stated == Some(true) && id.is_none() {
        return Err(TextError::metadata(
            key,
            "is true, but the file names no such token",
        ));
    }
    Ok(id.filter(|_| stated.unwrap_or(by_default)))
}

/// Chat templates in the metadata, if any.
pub(crate) fn templates(metadata: &Metadata) -> Result<Option<TemplateSources>, TextError> {
    let fields = Fields(metadata);
    let Some(default) = fields.str("tokenizer.chat_template")? else {
        return Ok(None);
    };
    let with_tools = fields
        .str("tokenizer.chat_template.tool_use")?
        .map(str::to_owned);
    Ok(Some(TemplateSources {
        default: default.to_owned(),
        with_tools,
    }))
}

/// Texts of the tokens with a role (BOS, EOS, ...), for use in templates.
pub(crate) fn special_tokens(metadata: &Metadata) -> Result<SpecialTokens, TextError> {
    let fields = Fields(metadata);
    let vocabulary = fields.vocabulary()?;
    let roles = [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ];
    let mut tokens = SpecialTokens::new();
    for (name, key) in roles {
        if let Some(id) = fields.token_id(key, &vocabulary)? {
            tokens.insert(name.to_owned(), vocabulary.text(id).to_owned());
        }
    }
    Ok(tokens)
}
