//! JSON schemas: what llguidance takes as they are, with a bound on white space.

use serde_json::{Map, Value, json};

use crate::error::GrammarError;

/// White space between the parts of a JSON text: a space, or a new line with an indentation.
/// Without a bound a model can go on for ever.
const WHITESPACE: &str = r"\x20|\x0D?\x0A[\x20\x09]{0,40}";
/// llguidance's own key, which could turn its checks off.
const OPTIONS: &str = "x-guidance";

/// Reads a schema.
pub(crate) fn read(text: &str) -> Result<Value, GrammarError> {
    let schema = serde_json::from_str(text)
        .map_err(|e| GrammarError::invalid(format!("the schema is not JSON: {e}")))?;
    prepared(schema)
}

/// A schema with the options that all have.
pub(crate) fn prepared(schema: Value) -> Result<Value, GrammarError> {
    let mut schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(GrammarError::invalid("no output matches false")),
        _ => return Err(GrammarError::invalid("a schema is an object")),
    };
    if schema.contains_key(OPTIONS) {
        return Err(GrammarError::Invalid(format!("{OPTIONS} is not supported")));
    }
    let options = json!({ "whitespace_pattern": WHITESPACE });
    schema.insert(OPTIONS.into(), options);
    Ok(Value::Object(schema))
}
