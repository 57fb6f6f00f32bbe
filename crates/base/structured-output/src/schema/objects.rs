//! Checks of property counts. llguidance counts a repeated name each time that it occurs.

use serde_json::{Map, Value};

use super::refused;
use crate::error::GrammarError;

/// Whether an object with listed names also accepts other names.
pub(super) fn has_free_names(schema: &Map<String, Value>) -> bool {
    let some = |name: &str| match schema.get(name) {
        Some(Value::Object(members)) => !members.is_empty(),
        Some(Value::Array(names)) => !names.is_empty(),
        _ => false,
    };
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    (some("properties") || some("required") || some("patternProperties")) && !closed
}

/// Refuses a `minProperties` that unlisted names would have to satisfy: one name could be repeated.
pub(super) fn check_count(schema: &Map<String, Value>, place: &str) -> Result<(), GrammarError> {
    let number = |name: &str| schema.get(name).and_then(Value::as_u64);
    let (least, most) = (
        number("minProperties").unwrap_or(0),
        number("maxProperties"),
    );
    let required = schema.get("required").and_then(Value::as_array);
    let required: Vec<&str> = required
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let more = least.saturating_sub(required.len() as u64);
    let properties = schema.get("properties").and_then(Value::as_object);
    let optional = properties.into_iter().flatten().filter(|(name, schema)| {
        **schema != Value::Bool(false) && !required.contains(&name.as_str())
    });
    let optional = optional.count();
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false))
        && patterns.is_none_or(Map::is_empty);
    if optional == 0 {
        return match more > 1 && !closed {
            true => Err(refused(
                "minProperties",
                place,
                "needs names that are not listed",
            )),
            false => Ok(()),
        };
    }
    let left = most.map(|most| most.saturating_sub(required.len() as u64));
    let followed = more <= 1 && left.is_none_or(|left| left == 1) && closed;
    let keyword = match (more > 0, left) {
        (true, _) => "minProperties",
        (false, Some(_)) => "maxProperties",
        (false, None) => return Ok(()),
    };
    match followed {
        true => Ok(()),
        false => Err(refused(
            keyword,
            place,
            "is not supported beside properties that are not required",
        )),
    }
}
