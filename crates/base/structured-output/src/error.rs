use std::time::Duration;

use serde_json::Value;

/// Maximum length of an error's reason in bytes: llguidance may repeat the whole grammar.
const MAX_REASON: usize = 300;
/// Maximum length of an excerpt in characters.
const MAX_EXCERPT: usize = 60;

/// A failed compilation of a grammar.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The text is invalid, or uses an unsupported feature.
    #[error("{0}")]
    Invalid(String),
    #[error("it takes longer than {} s to compile", .0.as_secs_f32())]
    TooSlow(Duration),
    /// The process of the grammar's trial ([`crate::trial_job`]) was killed by its resource limits.
    #[error("it takes too much memory or time to compile")]
    TooLarge,
    /// Earlier slow grammars occupy all threads, or no thread could be started. Not a verdict on
    /// the grammar.
    #[error("too many grammars are being compiled")]
    Busy,
    #[error("the model's tokenizer has no bytes for its tokens, so no grammar can be followed")]
    NoBytes,
}

/// A sequence cannot continue: its grammar became too complex, or allows no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the grammar cannot be followed: {0}")]
pub struct MatchError(pub String);

impl GrammarError {
    pub(crate) fn invalid(reason: impl Into<String>) -> Self {
        Self::Invalid(reason.into())
    }

    /// Converts an error of llguidance about a text from the request to one line of bounded length.
    pub(crate) fn of(error: &dyn std::fmt::Display) -> Self {
        Self::Invalid(shortened(&reworded(&error.to_string())))
    }

    /// Like [`Self::of`], for a grammar text that this crate generated: line numbers are dropped,
    /// because they mean nothing to the client.
    pub(crate) fn of_inner(error: &dyn std::fmt::Display) -> Self {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        let placed = line
            .strip_prefix("at ")
            .and_then(|rest| rest.split_once("): "));
        let line = placed.map_or(line, |(_, reason)| reason);
        let schema = line.strip_prefix("failed to compile JSON schema: ");
        let line = schema.unwrap_or(line);
        // An error of a regular expression follows a drawing of it.
        let end = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("error: "));
        let line = [line, end.unwrap_or_default()].join(" ");
        Self::Invalid(shortened(&reworded(line.trim_end())))
    }
}

impl MatchError {
    pub(crate) fn of(error: &dyn std::fmt::Display) -> Self {
        Self(shortened(&error.to_string()))
    }
}

/// The start of a value, for an error message.
pub(crate) fn excerpt(value: &Value) -> String {
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(MAX_EXCERPT) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// Replacements of llguidance's own terms.
const WORDS: [(&str, &str); 6] = [
    (
        "oneOf constraints are not supported",
        "oneOf is not supported where its branches may overlap",
    ),
    (
        "circular references with sibling keys are not supported",
        "a $ref that leads to itself is not supported beside other keywords",
    ),
    (
        "min/maxProperties only supported",
        "minProperties and maxProperties are not supported beside properties that are not required",
    ),
    (
        "Failed to generate regex",
        "the bounds of a number leave none that can be written",
    ),
    (
        "Unable to determine if regex is empty",
        "a pattern is too complex",
    ),
    (
        "All options in anyOf are unsatisfiable",
        "no output matches the schema: no branch of an anyOf can be matched",
    ),
];

/// Rewrites an error in terms of the request's fields.
fn reworded(text: &str) -> String {
    if let Some((_, words)) = WORDS.iter().find(|(inner, _)| text.contains(inner)) {
        return (*words).to_owned();
    }
    if let Some(rest) = text.strip_prefix("patternProperty regexes ")
        && let Some((names, _)) = rest.split_once(" are not disjoint")
    {
        return format!("patternProperties {names} are not supported: a name may match both");
    }
    text.replace("Unsatisfiable schema:", "no output matches the schema:")
}

/// Removes llguidance's dump of its state, which contains the output, and truncates the text.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_in_the_words_of_the_request() {
        for (inner, shown) in [
            (
                "at 3(9): failed to compile JSON schema: bad keys [\"x\"]\n 1 | start: r",
                "bad keys [\"x\"]",
            ),
            (
                "invalid regex \"(?=a)\": regex parse error:\n  (?=a)\n  ^^^\nerror: look-around",
                "invalid regex \"(?=a)\": regex parse error: look-around",
            ),
            (
                "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate",
                "oneOf is not supported where its branches may overlap",
            ),
            (
                "Unsatisfiable schema: minLength (3) is greater than maxLength (2)",
                "no output matches the schema: minLength (3) is greater than maxLength (2)",
            ),
        ] {
            assert_eq!(GrammarError::of_inner(&inner).to_string(), shown);
        }
    }
}
