//! Rewrites JSON schemas for llguidance: references resolved, bounds in forms that it handles
//! correctly, no annotations. An unsupported feature is an error that names the keyword and its
//! location.

mod finite;
mod keywords;
mod numbers;
mod objects;
mod resources;
mod rewrite;

use serde_json::{Map, Value, json};

use crate::error::{GrammarError, excerpt};

/// White space between the parts of a JSON text: a space, or a line break with an indentation.
/// Bounded, because a model could otherwise emit white space forever.
const WHITESPACE: &str = r"\x20|\x0D?\x0A[\x20\x09]{0,40}";
/// llguidance's own key, refused in requests because it could disable llguidance's checks.
const OPTIONS: &str = "x-guidance";
/// Escapes allowed in strings if an object accepts names besides its listed ones. Excludes `\u`,
/// with which a listed name could be spelled as another name.
const PLAIN_ESCAPES: &str = "nrbtf\\\"";

/// Parses a schema.
pub(crate) fn read(text: &str) -> Result<Value, GrammarError> {
    let schema = serde_json::from_str(text)
        .map_err(|e| GrammarError::invalid(format!("the schema is not JSON: {e}")))?;
    prepared(&schema)
}

/// Prepares a schema for llguidance and adds the common options.
pub(crate) fn prepared(schema: &Value) -> Result<Value, GrammarError> {
    match schema {
        Value::Object(members) if members.contains_key(OPTIONS) => {
            return Err(GrammarError::Invalid(format!("{OPTIONS} is not supported")));
        }
        Value::Object(_) | Value::Bool(_) => {}
        other => return Err(mistyped("a schema", "#", "an object or a boolean", other)),
    }
    let normalization = rewrite::normalized(schema)?;
    let mut schema = match finite::only(normalization.schema)? {
        Value::Object(schema) => schema,
        Value::Bool(true) => Map::new(),
        _ => return Err(GrammarError::invalid("no output matches the schema")),
    };
    let mut options = json!({ "whitespace_pattern": WHITESPACE });
    if normalization.free_names {
        options["json_allowed_escapes"] = PLAIN_ESCAPES.into();
    }
    schema.insert(OPTIONS.into(), options);
    Ok(Value::Object(schema))
}

/// Error about a keyword at a location in the schema.
fn refused(keyword: &str, place: &str, reason: &str) -> GrammarError {
    GrammarError::Invalid(format!("{keyword:.40} at {} {reason}", shown(place)))
}

/// Error about a keyword with a value of a kind other than `expected`.
fn mistyped(keyword: &str, place: &str, expected: &str, found: &Value) -> GrammarError {
    let reason = format!("must be {expected}, got {}", excerpt(found));
    refused(keyword, place, &reason)
}

/// The end of a long location, which is more specific than its start.
fn shown(place: &str) -> String {
    const MOST: usize = 120;
    let from = place.len().saturating_sub(MOST);
    match (from..place.len()).find(|&at| place.is_char_boundary(at)) {
        Some(at) if at > 0 => format!("...{}", &place[at..]),
        _ => place.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_keyword_its_place_what_must_be_and_what_is() {
        let x = |schema: Value| json!({"properties": {"x": schema}});
        for (schema, message) in [
            (
                json!(3),
                "a schema at # must be an object or a boolean, got 3",
            ),
            (
                x(json!(null)),
                "a schema at #/properties/x must be an object or a boolean, got null",
            ),
            (
                json!({"minimum": "1"}),
                "minimum at # must be a number, got \"1\"",
            ),
            (
                x(json!({"exclusiveMaximum": []})),
                "exclusiveMaximum at #/properties/x must be a number, got []",
            ),
            (
                json!({"multipleOf": -2}),
                "multipleOf at # must be a number above 0, got -2",
            ),
            (
                json!({"multipleOf": 99_999_989}),
                "multipleOf at # must be at most 10000 units of its last decimal, got 99999989",
            ),
            (
                json!({"minLength": -1}),
                "minLength at # must be a whole number from 0, got -1",
            ),
            (
                json!({"items": {"maxItems": 1.5}}),
                "maxItems at #/items must be a whole number from 0, got 1.5",
            ),
            (json!({"format": 1}), "format at # must be a string, got 1"),
            (
                json!({"pattern": {}}),
                "pattern at # must be a string, got {}",
            ),
            (
                json!({"required": "a"}),
                "required at # must be a list of strings, got \"a\"",
            ),
            (
                json!({"required": [1]}),
                "required at # must be a list of strings, got [1]",
            ),
            (json!({"anyOf": {}}), "anyOf at # must be a list, got {}"),
            (
                json!({"allOf": [{"oneOf": true}]}),
                "oneOf at #/allOf/0 must be a list, got true",
            ),
            (
                x(json!({"properties": []})),
                "properties at #/properties/x must be an object, got []",
            ),
            (
                json!({"properties": {"a/b": {"type": "strong"}}}),
                "type at #/properties/a~1b must be one of array, boolean, integer, null, number, \
                 object, string, or a list of them, got \"strong\"",
            ),
            (json!({"$ref": 1}), "$ref at # must be a string, got 1"),
            (
                json!({"$ref": "#/%+f"}),
                "$ref at # points to nothing in the schema: #/%+f",
            ),
        ] {
            let error = prepared(&schema).map_err(|error| error.to_string());
            assert_eq!(error, Err(message.to_owned()), "{schema}");
        }
        let long = json!({"pattern": [("é").repeat(100)]});
        let error = prepared(&long).map_err(|error| error.to_string());
        let shown = format!("[\"{}...", "é".repeat(58));
        assert_eq!(
            error,
            Err(format!("pattern at # must be a string, got {shown}"))
        );
    }
}
