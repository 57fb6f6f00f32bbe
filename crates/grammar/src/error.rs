use std::time::Duration;

/// Bytes of the reason that are shown: llguidance may repeat the whole grammar.
const MAX_REASON: usize = 300;

/// Why there is no matcher for a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The text is wrong, or uses what is not supported.
    #[error("{0}")]
    Invalid(String),
    #[error("it takes longer than {} s to compile", .0.as_secs_f32())]
    TooSlow(Duration),
    /// Earlier grammars that are too slow are still being compiled.
    #[error("too many grammars are being compiled")]
    Busy,
    #[error("the model's tokenizer has no bytes for its tokens, so no grammar can be followed")]
    NoBytes,
}

/// Why a sequence cannot go on: its grammar became too complex, or forbids every token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the grammar cannot be followed: {0}")]
pub struct MatchError(pub String);

impl GrammarError {
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid(reason.into())
    }

    /// An error of llguidance, in one line of bounded length.
    pub(crate) fn of(error: &dyn std::fmt::Display) -> Self {
        Self::Invalid(shortened(&error.to_string()))
    }
}

impl MatchError {
    pub(crate) fn of(error: &dyn std::fmt::Display) -> Self {
        Self(shortened(&error.to_string()))
    }
}

/// Without llguidance's dump of its state, which has the output.
fn shortened(text: &str) -> String {
    let text = text.split("\n<").next().unwrap_or(text);
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > MAX_REASON {
        let end = (0..=MAX_REASON).rfind(|&i| line.is_char_boundary(i));
        line.truncate(end.unwrap_or(0));
        line.push_str("...");
    }
    line
}
