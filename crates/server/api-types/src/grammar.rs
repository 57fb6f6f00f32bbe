//! Request fields with a grammar that constrains the output, as spelled by OpenAI, vLLM, SGLang and
//! llama.cpp.

use penstock_wire::{Grammar, GrammarKind, MAX_GRAMMAR_BYTES};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::fields::{Fields, read, read_object};
use crate::error::ApiError;

/// A grammar, and the request field that it came from, for errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputGrammar {
    pub field: &'static str,
    pub grammar: Grammar,
}

/// Fields that contain a grammar and nothing else.
const PLAIN: &[(&str, GrammarKind)] = &[
    ("guided_json", GrammarKind::JsonSchema),
    ("json_schema", GrammarKind::JsonSchema),
    ("guided_regex", GrammarKind::Regex),
    ("regex", GrammarKind::Regex),
    ("guided_choice", GrammarKind::Choice),
    ("guided_grammar", GrammarKind::Syntax),
    ("grammar", GrammarKind::Syntax),
    ("ebnf", GrammarKind::Syntax),
    ("structural_tag", GrammarKind::StructuralTag),
];

impl OutputGrammar {
    /// A grammar from the request field `field`.
    ///
    /// # Errors
    /// 400 when the text is empty or too long.
    pub fn new(
        field: &'static str,
        kind: GrammarKind,
        text: impl Into<String>,
    ) -> Result<Self, ApiError> {
        let grammar = Grammar::new(kind, text);
        match grammar.text.len() {
            1..=MAX_GRAMMAR_BYTES => Ok(Self { field, grammar }),
            bytes => Err(ApiError::invalid(
                field,
                format!("{field} must have 1 to {MAX_GRAMMAR_BYTES} bytes, got {bytes}."),
            )),
        }
    }

    /// Takes the fields that constrain the output; at most one may be set.
    pub(super) fn take(fields: &mut Fields<'_>) -> Result<Option<Self>, ApiError> {
        let mut found = Vec::new();
        found.extend(take_response_format(fields)?);
        found.extend(take_structured_outputs(fields)?);
        for &(field, kind) in PLAIN {
            let raw = fields.take_raw(field);
            found.extend(raw.map(|raw| of(field, kind, raw)).transpose()?);
        }
        if fields.flag("guided_json_object", false)? {
            found.push(any_object("guided_json_object"));
        }
        let mut found = found.into_iter();
        match (found.next(), found.next()) {
            (Some(one), Some(other)) => {
                let (one, other) = (one.field, other.field);
                let message = format!("{other} cannot be combined with {one}: one at a time.");
                Err(ApiError::invalid(other, message))
            }
            (one, _) => Ok(one),
        }
    }
}

fn is_string(raw: &RawValue) -> bool {
    raw.get().starts_with('"')
}

fn any_object(field: &'static str) -> OutputGrammar {
    let grammar = Grammar::json_object();
    OutputGrammar { field, grammar }
}

/// The grammar in the value of a field. Schemas and tags may be objects, or strings with their
/// JSON.
fn of(field: &'static str, kind: GrammarKind, raw: &RawValue) -> Result<OutputGrammar, ApiError> {
    let text = match kind {
        GrammarKind::Choice => {
            read::<Vec<String>>(field, raw)?;
            raw.get().to_owned()
        }
        GrammarKind::JsonSchema | GrammarKind::StructuralTag if !is_string(raw) => {
            raw.get().to_owned()
        }
        _ => read(field, raw)?,
    };
    OutputGrammar::new(field, kind, text)
}

fn take_response_format(fields: &mut Fields<'_>) -> Result<Option<OutputGrammar>, ApiError> {
    const FIELD: &str = "response_format";
    #[derive(Deserialize)]
    struct Wire {
        r#type: String,
        json_schema: Option<Named>,
        /// llama.cpp's place for the schema of a `json_object`.
        schema: Option<Box<RawValue>>,
    }
    #[derive(Deserialize)]
    #[serde(expecting = "an object with a schema")]
    struct Named {
        schema: Option<Box<RawValue>>,
    }
    let Some(raw) = fields.take_raw(FIELD) else {
        return Ok(None);
    };
    let wire: Wire = read_object(FIELD, raw, r#"{"type": "json_object"}"#)?;
    let schema = |raw: Box<RawValue>| of(FIELD, GrammarKind::JsonSchema, &raw);
    match wire.r#type.as_str() {
        "text" => Ok(None),
        "json_object" => match wire.schema {
            Some(raw) => schema(raw).map(Some),
            None => Ok(Some(any_object(FIELD))),
        },
        "json_schema" => match wire.json_schema.and_then(|named| named.schema) {
            Some(raw) => schema(raw).map(Some),
            None => Err(ApiError::invalid(
                FIELD,
                "response_format.json_schema.schema is required with type json_schema.",
            )),
        },
        "structural_tag" => {
            OutputGrammar::new(FIELD, GrammarKind::StructuralTag, raw.get()).map(Some)
        }
        other => Err(ApiError::invalid(
            FIELD,
            format!(
                "response_format.type must be text, json_object, json_schema or structural_tag, \
                 got {other:.40?}."
            ),
        )),
    }
}

fn take_structured_outputs(fields: &mut Fields<'_>) -> Result<Option<OutputGrammar>, ApiError> {
    const FIELD: &str = "structured_outputs";
    const KINDS: &[(&str, GrammarKind)] = &[
        ("json", GrammarKind::JsonSchema),
        ("regex", GrammarKind::Regex),
        ("choice", GrammarKind::Choice),
        ("grammar", GrammarKind::Syntax),
        ("structural_tag", GrammarKind::StructuralTag),
    ];
    let Some(raw) = fields.take_raw(FIELD) else {
        return Ok(None);
    };
    let mut found = Vec::new();
    let members: std::collections::BTreeMap<String, &RawValue> = read_members(FIELD, raw)?;
    for (name, raw) in members {
        let value = raw.get();
        if value == "null" || value == "false" {
            continue;
        }
        if name == "json_object" && value == "true" {
            found.push(any_object(FIELD));
        } else if let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == name) {
            found.push(of(FIELD, *kind, raw)?);
        } else {
            let message = format!("structured_outputs.{name:.40} is not supported by this server.");
            return Err(ApiError::invalid(FIELD, message));
        }
    }
    match found.len() {
        1 => Ok(found.pop()),
        n => Err(ApiError::invalid(
            FIELD,
            format!(
                "structured_outputs must have one of json, regex, choice, grammar, json_object and \
                 structural_tag, got {n}."
            ),
        )),
    }
}

fn read_members<'a>(
    field: &'static str,
    raw: &'a RawValue,
) -> Result<std::collections::BTreeMap<String, &'a RawValue>, ApiError> {
    serde_json::from_str(raw.get())
        .map_err(|_| ApiError::invalid(field, format!("{field} must be an object.")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn take(body: &str) -> Result<Option<OutputGrammar>, ApiError> {
        OutputGrammar::take(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    #[test]
    fn every_spelling_is_read() {
        let (schema, object) = (r#"{"type": "string"}"#, r#"{"type":"object"}"#);
        let quoted = serde_json::to_string(schema).unwrap();
        let named = format!(r#"{{"name":"x","strict":true,"schema":{schema}}}"#);
        let tag = r#"{"type":"structural_tag","structures":[],"triggers":[]}"#;
        for (body, kind, text) in [
            (
                format!(r#"{{"response_format":{{"type":"json_schema","json_schema":{named}}}}}"#),
                GrammarKind::JsonSchema,
                schema,
            ),
            (
                r#"{"response_format":{"type":"json_object"}}"#.into(),
                GrammarKind::JsonSchema,
                object,
            ),
            (
                format!(r#"{{"response_format":{{"type":"json_object","schema":{schema}}}}}"#),
                GrammarKind::JsonSchema,
                schema,
            ),
            (
                format!(r#"{{"response_format":{tag}}}"#),
                GrammarKind::StructuralTag,
                tag,
            ),
            (
                format!(r#"{{"structured_outputs":{{"json":{quoted},"regex":null}}}}"#),
                GrammarKind::JsonSchema,
                schema,
            ),
            (
                r#"{"structured_outputs":{"json_object":true}}"#.into(),
                GrammarKind::JsonSchema,
                object,
            ),
            (
                r#"{"structured_outputs":{"choice":["a","b"]}}"#.into(),
                GrammarKind::Choice,
                r#"["a","b"]"#,
            ),
            (
                r#"{"guided_regex":"a\n+"}"#.into(),
                GrammarKind::Regex,
                "a\n+",
            ),
            (
                r#"{"ebnf":"root ::= \"a\""}"#.into(),
                GrammarKind::Syntax,
                r#"root ::= "a""#,
            ),
            (
                r#"{"guided_json_object":true,"guided_regex":null}"#.into(),
                GrammarKind::JsonSchema,
                object,
            ),
        ] {
            let found = take(&body).unwrap().unwrap().grammar;
            assert_eq!((found.kind, found.text.as_str()), (kind, text), "{body}");
        }
        for body in [
            "{}",
            r#"{"response_format":{"type":"text"},"guided_json_object":false}"#,
        ] {
            assert_eq!(take(body).unwrap(), None);
        }
    }

    #[test]
    fn what_is_wrong_is_refused_by_name() {
        for (body, param) in [
            (r#"{"response_format":{"type":"xml"}}"#, "response_format"),
            (
                r#"{"response_format":{"type":"json_schema"}}"#,
                "response_format",
            ),
            (r#"{"response_format":"json"}"#, "response_format"),
            (r#"{"structured_outputs":{}}"#, "structured_outputs"),
            (r#"{"structured_outputs":[]}"#, "structured_outputs"),
            (
                r#"{"structured_outputs":{"regex":"a","json":{}}}"#,
                "structured_outputs",
            ),
            (
                r#"{"structured_outputs":{"regex":"a","whitespace_pattern":" "}}"#,
                "structured_outputs",
            ),
            (r#"{"guided_regex":7}"#, "guided_regex"),
            (r#"{"guided_regex":""}"#, "guided_regex"),
            (r#"{"guided_choice":["a",1]}"#, "guided_choice"),
            (r#"{"guided_regex":"a","regex":"a"}"#, "regex"),
            (
                r#"{"response_format":{"type":"json_object"},"guided_json":{}}"#,
                "guided_json",
            ),
        ] {
            let error = take(body).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {error}");
        }
        let long = format!(
            r#"{{"guided_regex":"{}"}}"#,
            "a".repeat(MAX_GRAMMAR_BYTES + 1)
        );
        assert!(take(&long).unwrap_err().message.contains("262144"));
    }
}
