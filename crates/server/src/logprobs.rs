//! Log-probability rows of the engine in the shapes of the two endpoints.

use penstock_openai::{
    ChatLogprobs, CompletionLogprobs, PromptLogprob, PromptScores, TokenLogprob, TokenScores,
    TopLogprob,
};
use penstock_text::Tokenizer;
use penstock_wire::LogprobRow;

/// What JSON has instead of minus infinity, as in vLLM.
const LEAST: f32 = -9999.0;

/// A finite log-probability.
fn finite(logprob: f32) -> f32 {
    // NaN as well: max returns the other operand.
    logprob.max(LEAST)
}

/// The chat shape of `tokens`; `as_ids` names them by id.
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

/// The scores of a prompt. Row i belongs to token i + 1; the first token has none.
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
