//! Converts the engine's log-probability rows to the formats of the chat and completions endpoints.

use std::iter::once;

use penstock_api_types::{
    ChatLogprobs, CompletionLogprobs, PromptLogprob, PromptScores, TokenLogprob, TokenScores,
    TopLogprob,
};
use penstock_tokenizer::Tokenizer;
use penstock_wire::LogprobRow;

/// Replacement for minus infinity, which JSON cannot represent; as in vLLM.
const LEAST: f32 = -9999.0;

/// Clamps a log-probability to a finite value.
fn finite(logprob: f32) -> f32 {
    // Also replaces NaN: `max` returns the other operand.
    logprob.max(LEAST)
}

/// How log-probabilities name tokens: by text, or by id as `token_id:17`.
#[derive(Clone, Copy)]
pub(crate) struct TokenNames<'t> {
    pub(crate) tokenizer: &'t Tokenizer,
    pub(crate) as_ids: bool,
}

impl TokenNames<'_> {
    fn chat(self, id: u32) -> String {
        match self.as_ids {
            true => by_id(id),
            false => self.tokenizer.token_text(id),
        }
    }

    /// A token that is part of a character has no text and is named as by OpenAI,
    /// `bytes:\xf0\x9f`, so that keys stay unique.
    fn completion(self, id: u32) -> String {
        if self.as_ids {
            return by_id(id);
        }
        String::from_utf8(bytes(self.tokenizer, id)).unwrap_or_else(|error| {
            let escaped = error.as_bytes().escape_ascii();
            format!("bytes:{escaped}")
        })
    }
}

fn by_id(id: u32) -> String {
    format!("token_id:{id}")
}

fn bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    tokenizer.token_bytes(id).unwrap_or_default().into_owned()
}

/// Chat format of `tokens`.
pub(crate) fn chat(names: TokenNames<'_>, tokens: &[u32], rows: &[LogprobRow]) -> ChatLogprobs {
    let content = tokens.iter().zip(rows).map(|(&token, row)| {
        let top = row.alternatives.iter().map(|&(id, logprob)| TopLogprob {
            token: names.chat(id),
            logprob: finite(logprob),
            bytes: bytes(names.tokenizer, id),
        });
        TokenLogprob {
            token: names.chat(token),
            logprob: finite(row.logprob),
            bytes: bytes(names.tokenizer, token),
            top_logprobs: top.collect(),
        }
    });
    ChatLogprobs {
        content: content.collect(),
    }
}

/// The log-probabilities of a prompt's tokens, with at most `most` alternatives each. Row i belongs
/// to token i + 1; the first token has none.
pub(crate) fn prompt(
    tokenizer: &Tokenizer,
    most: u8,
    tokens: &[u32],
    rows: &[LogprobRow],
) -> Vec<Option<PromptScores>> {
    let score = |id: u32, logprob, rank| {
        let scored = PromptLogprob {
            logprob: finite(logprob),
            rank,
            decoded_token: tokenizer.token_text(id),
        };
        (id, scored)
    };
    let scores = tokens.iter().skip(1).zip(rows).map(|(&token, row)| {
        let others = alternatives(row, most).iter().zip(1..);
        let others = others.filter(|((id, _), _)| *id != token);
        let others = others.map(|(&(id, logprob), rank)| score(id, logprob, rank));
        let own = score(token, row.logprob, row.rank);
        Some(PromptScores(once(own).chain(others).collect()))
    });
    once(None).chain(scores).collect()
}

/// The `most` likeliest alternatives of a row, which may have more.
fn alternatives(row: &LogprobRow, most: u8) -> &[(u32, f32)] {
    let most = row.alternatives.len().min(most.into());
    &row.alternatives[..most]
}

/// Appends `tokens` in the completions format, each with its offset in the text and at most `most`
/// alternatives. A missing row, as for the first token of a prompt, becomes nulls.
pub(crate) fn append_completion<'r>(
    out: &mut CompletionLogprobs,
    names: TokenNames<'_>,
    most: u8,
    tokens: impl Iterator<Item = (u32, u32)>,
    rows: impl Iterator<Item = Option<&'r LogprobRow>>,
) {
    for ((token, offset), row) in tokens.zip(rows) {
        let name = names.completion(token);
        out.text_offset.push(offset);
        out.token_logprobs.push(row.map(|row| finite(row.logprob)));
        out.top_logprobs
            .push(row.map(|row| scores(names, most, &name, row)));
        out.tokens.push(name);
    }
}

/// Scores of the alternatives, plus the token itself if it is not among them.
fn scores(names: TokenNames<'_>, most: u8, token: &str, row: &LogprobRow) -> TokenScores {
    let mut scores = TokenScores::default();
    for &(id, logprob) in alternatives(row, most) {
        scores.insert(names.completion(id), finite(logprob));
    }
    scores.insert(token.to_owned(), finite(row.logprob));
    scores
}
