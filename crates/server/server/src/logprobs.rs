//! Converts the engine's log-probability rows to the formats of the chat and completions endpoints.

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

/// Chat format of `tokens`; with `as_ids` tokens are named by id.
pub(crate) fn chat(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    rows: &[LogprobRow],
    as_ids: bool,
) -> ChatLogprobs {
    let name = |id| match as_ids {
        true => format!("token_id:{id}"),
        false => tokenizer.token_text(id),
    };
    let content = tokens.iter().zip(rows).map(|(&token, row)| {
        let top = row.alternatives.iter().map(|&(id, logprob)| TopLogprob {
            token: name(id),
            logprob: finite(logprob),
            bytes: bytes(tokenizer, id),
        });
        TokenLogprob {
            token: name(token),
            logprob: finite(row.logprob),
            bytes: bytes(tokenizer, token),
            top_logprobs: top.collect(),
        }
    });
    ChatLogprobs {
        content: content.collect(),
    }
}

/// The log-probabilities of a prompt's tokens. Row i belongs to token i + 1; the first token has
/// none.
pub(crate) fn prompt(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    rows: &[LogprobRow],
) -> Vec<Option<PromptScores>> {
    let score = |id: u32, logprob, rank| {
        let scored = PromptLogprob {
            logprob: finite(logprob),
            rank,
            decoded_token: tokenizer.token_text(id),
        };
        (id.to_string(), scored)
    };
    let scores = tokens.iter().skip(1).zip(rows).map(|(&token, row)| {
        let others = row.alternatives.iter().zip(1..);
        let others = others.map(|(&(id, logprob), rank)| score(id, logprob, rank));
        let own = score(token, row.logprob, row.rank);
        Some(others.chain([own]).collect())
    });
    std::iter::once(None).chain(scores).collect()
}

fn bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    tokenizer.token_bytes(id).unwrap_or_default().into_owned()
}

/// Appends `tokens` in the completions format, each with its offset in the text. A missing row, as
/// for the first token of a prompt, becomes nulls.
pub(crate) fn append_completion<'r>(
    out: &mut CompletionLogprobs,
    tokenizer: &Tokenizer,
    tokens: impl Iterator<Item = (u32, u32)>,
    rows: impl Iterator<Item = Option<&'r LogprobRow>>,
) {
    for ((token, offset), row) in tokens.zip(rows) {
        let name = completion_name(tokenizer, token);
        out.text_offset.push(offset);
        out.token_logprobs.push(row.map(|row| finite(row.logprob)));
        out.top_logprobs
            .push(row.map(|row| scores(tokenizer, &name, row)));
        out.tokens.push(name);
    }
}

/// The text of a token. A token that is part of a character has no text and is named as by OpenAI,
/// `bytes:\xf0\x9f`, so that keys stay unique.
fn completion_name(tokenizer: &Tokenizer, id: u32) -> String {
    let bytes = bytes(tokenizer, id);
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let escaped = error.as_bytes().escape_ascii();
        format!("bytes:{escaped}")
    })
}

/// Scores of the alternatives, plus the token itself if it is not among them.
fn scores(tokenizer: &Tokenizer, token: &str, row: &LogprobRow) -> TokenScores {
    let mut scores = TokenScores::default();
    for &(id, logprob) in &row.alternatives {
        scores.insert(completion_name(tokenizer, id), finite(logprob));
    }
    scores.insert(token.to_owned(), finite(row.logprob));
    scores
}
