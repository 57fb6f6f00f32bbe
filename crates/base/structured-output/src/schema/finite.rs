//! Detects schemas without a finite instance, such as `N = {n: N}` with `n` required. An output
//! that follows such a schema never ends.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::error::GrammarError;

const DEFINITIONS: &str = "#/$defs/";

/// Replaces subschemas without a finite instance by `false`, which no value matches.
///
/// # Errors
/// The whole schema has no finite instance.
pub(super) fn only(mut schema: Value) -> Result<Value, GrammarError> {
    let check = FinitenessCheck::of(&schema);
    if check.references.is_empty() {
        return Ok(schema);
    }
    if !check.ends(&schema) {
        return Err(GrammarError::invalid(
            "no output matches the schema: what it requires contains itself without an end",
        ));
    }
    let found = check.references;
    cut(&mut schema, &found);
    Ok(schema)
}

/// Fixpoint of the references to schemas without a finite instance.
struct FinitenessCheck<'a> {
    root: &'a Value,
    references: HashSet<String>,
}

impl<'a> FinitenessCheck<'a> {
    /// Starts with all references and removes those with a finite instance until a round removes
    /// none. Targets are defined after the references to them, so one backward round is usually
    /// enough.
    fn of(root: &'a Value) -> Self {
        let definitions = root.get("$defs").and_then(Value::as_object);
        let names = definitions.into_iter().flatten();
        let all = std::iter::once("#".to_owned())
            .chain(names.map(|(name, _)| format!("{DEFINITIONS}{name}")));
        let mut open: Vec<String> = all.collect();
        let references = open.iter().cloned().collect();
        let mut check = Self { root, references };
        loop {
            let before = open.len();
            for at in (0..open.len()).rev() {
                if check
                    .target(&open[at])
                    .is_some_and(|schema| check.ends(schema))
                {
                    check.references.remove(&open.remove(at));
                }
            }
            if open.len() == before {
                return check;
            }
        }
    }

    fn target(&self, reference: &str) -> Option<&'a Value> {
        match reference.strip_prefix(DEFINITIONS) {
            Some(name) => self.root.get("$defs")?.get(name),
            None => Some(self.root),
        }
    }

    /// Whether a schema has a finite instance, given the references that have none.
    fn ends(&self, schema: &Value) -> bool {
        if let (Some(reference), Some(1)) = (
            schema.get("$ref").and_then(Value::as_str),
            schema.as_object().map(Map::len),
        ) {
            return !self.references.contains(reference);
        }
        let mut parts = Vec::new();
        let known = self.parts(schema, &mut parts, &mut HashSet::new());
        let any = |part: &Map<String, Value>, name: &str| {
            let branches = part.get(name).and_then(Value::as_array);
            branches.is_none_or(|branches| branches.iter().any(|branch| self.ends(branch)))
        };
        known
            && parts
                .iter()
                .all(|part| any(part, "anyOf") && any(part, "oneOf"))
            && self.types_end(&parts)
    }

    /// Collects the schemas that apply together. Returns false if one is known to have no finite
    /// instance.
    fn parts<'s>(
        &self,
        schema: &'s Value,
        parts: &mut Vec<&'s Map<String, Value>>,
        seen: &mut HashSet<String>,
    ) -> bool
    where
        'a: 's,
    {
        let Some(members) = schema.as_object() else {
            return schema != &Value::Bool(false);
        };
        parts.push(members);
        if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
            if self.references.contains(reference) {
                return false;
            }
            if seen.insert(reference.to_owned())
                && let Some(target) = self.target(reference)
                && !self.parts(target, parts, seen)
            {
                return false;
            }
        }
        let all = members.get("allOf").and_then(Value::as_array);
        all.into_iter()
            .flatten()
            .all(|part| self.parts(part, parts, seen))
    }

    fn types_end(&self, parts: &[&Map<String, Value>]) -> bool {
        let allowed = |name: &str| {
            parts.iter().all(|part| match part.get("type") {
                Some(Value::String(one)) => one == name || (name == "number" && one == "integer"),
                Some(Value::Array(names)) => names
                    .iter()
                    .any(|one| one == name || (name == "number" && one == "integer")),
                _ => true,
            })
        };
        let constant =
            |part: &&Map<String, Value>| part.contains_key("const") || part.contains_key("enum");
        parts.iter().any(constant)
            || ["null", "boolean", "number", "string"].into_iter().any(allowed)
            || (allowed("array") && self.array_ends(parts))
            || (allowed("object") && self.object_ends(parts))
            // If no type is allowed at all, that is a different error.
            || !(allowed("array") || allowed("object"))
    }

    fn array_ends(&self, parts: &[&Map<String, Value>]) -> bool {
        let least = parts
            .iter()
            .filter_map(|part| part.get("minItems")?.as_u64())
            .max();
        let least = least.unwrap_or(0) as usize;
        parts.iter().all(|part| {
            let list = |name: &str| part.get(name).and_then(Value::as_array);
            let prefix = list("prefixItems").or_else(|| list("items"));
            let prefix = prefix.map_or(&[][..], Vec::as_slice);
            let rest = match part.get("items") {
                Some(Value::Array(_)) | None => part.get("additionalItems"),
                items => items,
            };
            let rest_ends = least <= prefix.len() || rest.is_none_or(|rest| self.ends(rest));
            rest_ends && prefix.iter().take(least).all(|item| self.ends(item))
        })
    }

    fn object_ends(&self, parts: &[&Map<String, Value>]) -> bool {
        let required = parts
            .iter()
            .filter_map(|part| part.get("required")?.as_array());
        let mut names = required.flatten().filter_map(Value::as_str);
        names.all(|name| {
            parts.iter().all(|part| {
                let own = part
                    .get("properties")
                    .and_then(|properties| properties.get(name));
                let patterns = part.contains_key("patternProperties");
                let others = part.get("additionalProperties").filter(|_| !patterns);
                own.or(others).is_none_or(|schema| self.ends(schema))
            })
        })
    }
}

/// Replaces references to schemas without a finite instance by `false`.
fn cut(schema: &mut Value, unbounded: &HashSet<String>) {
    match schema {
        Value::Object(members) => {
            let reference = members.get("$ref").and_then(Value::as_str);
            if reference.is_some_and(|reference| unbounded.contains(reference)) {
                *schema = Value::Bool(false);
                return;
            }
            for (name, inner) in members.iter_mut() {
                match (name.as_str(), inner) {
                    ("const" | "enum" | "required" | "type", _) => {}
                    ("$defs" | "patternProperties" | "properties", Value::Object(schemas)) => {
                        schemas.values_mut().for_each(|inner| cut(inner, unbounded));
                    }
                    (_, inner) => cut(inner, unbounded),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| cut(item, unbounded)),
        _ => {}
    }
}
