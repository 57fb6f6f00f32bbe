//! Unimplemented fields that would change the output: accepted at their neutral value, rejected by
//! name otherwise. Ignoring one would answer a constrained request with unconstrained text and
//! status 200.

use serde_json::Value;

use super::fields::Fields;
use crate::error::ApiError;

/// Neutral values of a field.
enum Neutral {
    /// Only `null` or absence.
    Null,
    Number(f64),
    Bool(bool),
    /// An empty list, object or string.
    Empty,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A list whose only items are `text`.
    TextOnly,
}

const NOT_BUILT: &[(&str, Neutral)] = &[
    ("best_of", Neutral::Number(1.0)),
    ("use_beam_search", Neutral::Bool(false)),
    ("length_penalty", Neutral::Number(1.0)),
    ("repeat_penalty", Neutral::Number(1.0)),
    ("typical_p", Neutral::Number(1.0)),
    ("logits_processors", Neutral::Empty),
    ("suffix", Neutral::Empty),
    ("logprob_token_ids", Neutral::Empty),
    ("prompt_embeds", Neutral::Null),
    ("no_stop_trim", Neutral::Bool(false)),
    ("spaces_between_special_tokens", Neutral::Bool(true)),
    ("continue_final_message", Neutral::Bool(false)),
    ("echo", Neutral::Bool(false)),
    ("chat_template", Neutral::Null),
    ("documents", Neutral::Empty),
    ("tools", Neutral::Empty),
    ("tool_choice", Neutral::OneOf(&["none", "auto"])),
    ("functions", Neutral::Empty),
    ("function_call", Neutral::OneOf(&["none", "auto"])),
    ("modalities", Neutral::TextOnly),
    ("audio", Neutral::Null),
    ("mm_processor_kwargs", Neutral::Empty),
    ("web_search_options", Neutral::Null),
    ("thinking_token_budget", Neutral::Null),
    ("repetition_detection", Neutral::Null),
    ("watermarking", Neutral::Bool(false)),
    ("lora_path", Neutral::Null),
    ("kv_transfer_params", Neutral::Null),
    ("ec_transfer_params", Neutral::Null),
    ("guided_decoding_backend", Neutral::Null),
    ("guided_whitespace_pattern", Neutral::Null),
    ("stop_regex", Neutral::Null),
];

/// Unimplemented fields of pooled requests.
const NOT_BUILT_IN_POOLING: &[(&str, Neutral)] = &[
    ("embed_dtype", Neutral::OneOf(&["float32"])),
    ("endianness", Neutral::OneOf(&["native", "little"])),
    ("max_tokens_per_doc", Neutral::Null),
    ("chat_template", Neutral::Null),
    ("continue_final_message", Neutral::Bool(false)),
    ("mm_processor_kwargs", Neutral::Empty),
];

/// Checks the fields that remain after an endpoint has taken its own.
pub(super) fn check(fields: &Fields<'_>) -> Result<(), ApiError> {
    check_against(NOT_BUILT, fields)
}

/// [`check`] for pooled requests.
pub(super) fn check_pooling(fields: &Fields<'_>) -> Result<(), ApiError> {
    check_against(NOT_BUILT_IN_POOLING, fields)
}

fn check_against(
    table: &'static [(&'static str, Neutral)],
    fields: &Fields<'_>,
) -> Result<(), ApiError> {
    for (name, raw) in fields.remaining() {
        let Some((name, neutral)) = table.iter().find(|(known, _)| *known == name) else {
            continue;
        };
        let value: Value = super::fields::read(name, raw)?;
        if !neutral.accepts(&value) {
            return Err(refusal(name, neutral));
        }
    }
    Ok(())
}

fn refusal(name: &'static str, neutral: &Neutral) -> ApiError {
    let remedy = match neutral {
        Neutral::Null => "leave it out".to_owned(),
        Neutral::Number(n) => format!("leave it out or send {n}"),
        Neutral::Bool(b) => format!("leave it out or send {b}"),
        Neutral::Empty => "leave it out or send it empty".to_owned(),
        Neutral::OneOf(words) => format!("leave it out or send one of {}", words.join(", ")),
        Neutral::TextOnly => "leave it out or send [\"text\"]".to_owned(),
    };
    ApiError::unsupported(name, &remedy)
}

impl Neutral {
    fn accepts(&self, value: &Value) -> bool {
        if value.is_null() {
            return true;
        }
        match self {
            Self::Null => false,
            Self::Number(n) => value.as_f64() == Some(*n),
            Self::Bool(b) => value.as_bool() == Some(*b),
            Self::Empty => is_empty(value),
            Self::OneOf(words) => value.as_str().is_some_and(|s| words.contains(&s)),
            Self::TextOnly => value
                .as_array()
                .is_some_and(|a| a.iter().all(|v| v == "text")),
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn verdict(body: &str) -> Result<(), ApiError> {
        check(&Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn neutral_values_pass() {
        verdict(
            r#"{"best_of":1,"length_penalty":1.0,"logits_processors":[],"tools":[],"tool_choice":"auto",
                "suffix":null,"typical_p":1,"guided_whitespace_pattern":null,
                "user":"u","metadata":{"a":1},"priority":3,"some_new_thing":{"x":[1]},"parallel_tool_calls":true}"#,
        )
        .unwrap();
    }

    #[test]
    fn others_are_refused_by_name() {
        for (body, param) in [
            (r#"{"best_of":2}"#, "best_of"),
            (r#"{"typical_p":0.1}"#, "typical_p"),
            (r#"{"logits_processors":[1]}"#, "logits_processors"),
            (r#"{"tools":[{}]}"#, "tools"),
            (r#"{"tool_choice":"required"}"#, "tool_choice"),
            (
                r#"{"guided_whitespace_pattern":" "}"#,
                "guided_whitespace_pattern",
            ),
            (r#"{"suffix":"x"}"#, "suffix"),
            (r#"{"logprob_token_ids":[7]}"#, "logprob_token_ids"),
            (r#"{"repetition_detection":{}}"#, "repetition_detection"),
            (r#"{"best_of":"1"}"#, "best_of"),
        ] {
            let error = verdict(body).unwrap_err();
            assert_eq!(
                (error.status, error.param.as_deref()),
                (400, Some(param)),
                "{body}"
            );
        }
    }
}
