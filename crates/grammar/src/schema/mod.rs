//! JSON schemas, written anew with what llguidance honours: references resolved, bounds that it has
//! right, no annotations. What cannot be honoured is an error that names the keyword and its place.

mod finite;
mod keywords;
mod numbers;
mod objects;
mod resources;
mod rewrite;

use serde_json::{Map, Value, json};

use crate::error::GrammarError;

/// White space between the parts of a JSON text: a space, or a new line with an indentation.
/// Without a bound a model can go on for ever.
const WHITESPACE: &str = r"\x20|\x0D?\x0A[\x20\x09]{0,40}";
/// llguidance's own key, which could turn its checks off.
const OPTIONS: &str = "x-guidance";
/// Escapes in strings where names are free beside others that are not: a name spelled with `\u`
/// could be one of those others.
const PLAIN_ESCAPES: &str = "nrbtf\\\"";

/// Reads a schema.
pub(crate) fn read(text: &str) -> Result<Value, GrammarError> {
    let schema = serde_json::from_str(text)
        .map_err(|e| GrammarError::invalid(format!("the schema is not JSON: {e}")))?;
    prepared(&schema)
}

/// A schema in the keywords that are honoured, with the options that all have.
pub(crate) fn prepared(schema: &Value) -> Result<Value, GrammarError> {
    match schema {
        Value::Object(members) if members.contains_key(OPTIONS) => {
            return Err(GrammarError::Invalid(format!("{OPTIONS} is not supported")));
        }
        Value::Object(_) | Value::Bool(_) => {}
        _ => return Err(GrammarError::invalid("a schema is an object")),
    }
    let rewritten = rewrite::rewritten(schema)?;
    let mut schema = match finite::only(rewritten.schema)? {
        Value::Object(schema) => schema,
        Value::Bool(true) => Map::new(),
        _ => return Err(GrammarError::invalid("no output matches the schema")),
    };
    let mut options = json!({ "whitespace_pattern": WHITESPACE });
    if rewritten.free_names {
        options["json_allowed_escapes"] = PLAIN_ESCAPES.into();
    }
    schema.insert(OPTIONS.into(), options);
    Ok(Value::Object(schema))
}

/// An error about a keyword at a place in the schema.
fn refused(keyword: &str, place: &str, reason: &str) -> GrammarError {
    GrammarError::Invalid(format!("{keyword:.40} at {} {reason}", shown(place)))
}

/// The end of a place, which tells more than its beginning.
fn shown(place: &str) -> String {
    const MOST: usize = 120;
    let from = place.len().saturating_sub(MOST);
    match (from..place.len()).find(|&at| place.is_char_boundary(at)) {
        Some(at) if at > 0 => format!("...{}", &place[at..]),
        _ => place.to_owned(),
    }
}
