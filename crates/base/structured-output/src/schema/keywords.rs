//! JSON Schema keywords that a grammar cannot support, with the first draft of the standard that
//! has them.

use serde_json::{Map, Value};

use super::refused;
use crate::error::GrammarError;

/// Drafts of JSON Schema, from the root's `$schema`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    Four,
    Six,
    Seven,
    Year2019,
    Year2020,
}

const UNSUPPORTED: [(&str, Draft); 12] = [
    ("not", Draft::Four),
    ("dependencies", Draft::Four),
    ("uniqueItems", Draft::Four),
    ("contains", Draft::Six),
    ("propertyNames", Draft::Six),
    ("if", Draft::Seven),
    ("dependentRequired", Draft::Year2019),
    ("dependentSchemas", Draft::Year2019),
    ("unevaluatedItems", Draft::Year2019),
    ("unevaluatedProperties", Draft::Year2019),
    ("$recursiveRef", Draft::Year2019),
    ("$dynamicRef", Draft::Year2020),
];

/// Keywords next to which `unevaluatedProperties` differs from `additionalProperties`.
const IN_PLACE: [&str; 5] = ["$ref", "allOf", "anyOf", "if", "oneOf"];

impl Draft {
    pub(super) fn of(schema: &Value) -> Self {
        let named = schema.get("$schema").and_then(Value::as_str);
        match named.unwrap_or_default().trim_end_matches('#') {
            "http://json-schema.org/draft-04/schema" => Self::Four,
            "http://json-schema.org/draft-06/schema" => Self::Six,
            "http://json-schema.org/draft-07/schema" => Self::Seven,
            "https://json-schema.org/draft/2019-09/schema" => Self::Year2019,
            _ => Self::Year2020,
        }
    }
}

/// Refuses unsupported keywords, unless they constrain nothing.
pub(super) fn check(
    schema: &Map<String, Value>,
    draft: Draft,
    place: &str,
) -> Result<(), GrammarError> {
    for (keyword, since) in UNSUPPORTED {
        let Some(value) = schema.get(keyword).filter(|_| draft >= since) else {
            continue;
        };
        if !demands_nothing(schema, keyword, value) && !closes(schema, keyword, value) {
            return Err(refused(keyword, place, "is not supported"));
        }
    }
    Ok(())
}

/// Whether this is an `unevaluatedProperties: false` that equals `additionalProperties: false`.
pub(super) fn closes(schema: &Map<String, Value>, keyword: &str, value: &Value) -> bool {
    let in_place = IN_PLACE.iter().any(|other| schema.contains_key(*other));
    keyword == "unevaluatedProperties" && !in_place && value == &Value::Bool(false)
}

fn demands_nothing(schema: &Map<String, Value>, keyword: &str, value: &Value) -> bool {
    let empty = value.as_object().is_some_and(Map::is_empty);
    match keyword {
        "uniqueItems" => {
            let most = schema.get("maxItems").and_then(Value::as_u64);
            value == &Value::Bool(false) || most.is_some_and(|most| most < 2)
        }
        "if" => !schema.contains_key("then") && !schema.contains_key("else"),
        "dependencies" | "dependentRequired" | "dependentSchemas" => empty,
        "propertyNames" | "unevaluatedItems" | "unevaluatedProperties" => {
            empty || value == &Value::Bool(true)
        }
        _ => false,
    }
}
