//! Log-probability rows of the engine in the shapes of the two endpoints.

use penstock_openai::{ChatLogprobs, CompletionLogprobs, TokenLogprob, TokenScores, TopLogprob};
use penstock_text::Tokenizer;
use penstock_wire::LogprobRow;

/// What JSON has instead of minus infinity, as in vLLM.
const LEAST: f32 = -9999.0;

/// A finite log-probability.
fn finite(logprob: f32) -> f32 {
    // NaN as well: max returns the other operand.
    logprob.max(LEAST)
}

/// The chat shape of `tokens`.
pub(crate) fn chat(tokenizer: &Tokenizer, tokens: &[u32], rows: &[LogprobRow]) -> ChatLogprobs {
    let content = tokens.iter().zip(rows).map(|(&token, row)| {
        let top = row.alternatives.iter().map(|&(id, logprob)| TopLogprob {
            token: tokenizer.token_text(id),
            logprob: finite(logprob),
            bytes: bytes(tokenizer, id),
        });
        TokenLogprob {
            token: tokenizer.token_text(token),
            logprob: finite(row.logprob),
            bytes: bytes(tokenizer, token),
            top_logprobs: top.collect(),
        }
    });
    ChatLogprobs {
        content: content.collect(),
    }
}

fn bytes(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    tokenizer.token_bytes(id).unwrap_or_default().into_owned()
}

/// Appends `tokens` in the completions shape. A missing row, as the first token of a prompt has,
/// becomes nulls. `offset` counts the characters of the tokens so far.
pub(crate) fn append_completion<'r>(
    out: &mut CompletionLogprobs,
    tokenizer: &Tokenizer,
    tokens: &[u32],
    rows: impl Iterator<Item = Option<&'r LogprobRow>>,
    offset: &mut u32,
) {
    for (&token, row) in tokens.iter().zip(rows) {
        let text = tokenizer.token_text(token);
        out.text_offset.push(*offset);
        *offset += text.chars().count() as u32;
        out.token_logprobs.push(row.map(|row| finite(row.logprob)));
        out.top_logprobs
            .push(row.map(|row| scores(tokenizer, &text, row)));
        out.tokens.push(text);
    }
}

/// The alternatives and, when it is none of them, the token itself.
fn scores(tokenizer: &Tokenizer, token: &str, row: &LogprobRow) -> TokenScores {
    let mut scores = TokenScores::default();
    for &(id, logprob) in &row.alternatives {
        scores.insert(tokenizer.token_text(id), finite(logprob));
    }
    scores.insert(token.to_owned(), finite(row.logprob));
    scores
}
