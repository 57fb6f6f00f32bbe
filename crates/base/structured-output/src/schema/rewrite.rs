//! Normalizes a schema: one `$defs` with all referenced schemas, no annotations, and only bounds
//! that llguidance handles correctly.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::keywords::{self, Draft};
use super::numbers::{self, Multiple};
use super::resources::{Resources, Target};
use super::{mistyped, objects, refused};
use crate::error::GrammarError;

type Result<T> = std::result::Result<T, GrammarError>;
type Members = Map<String, Value>;

/// Maximum number of schemas in the result, which can have many because branches of `oneOf` are
/// copied.
const MOST_SCHEMAS: usize = 50_000;
/// A count that no output reaches.
const ENDLESS: u64 = 1_000_000_000;
/// Formats that llguidance supports. The standard allows all formats to be annotations.
const FORMATS: [&str; 10] = [
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
];
const COUNTS: [(&str, bool); 6] = [
    ("minLength", true),
    ("maxLength", false),
    ("minItems", true),
    ("maxItems", false),
    ("minProperties", true),
    ("maxProperties", false),
];
/// Keywords whose schemas are merged with their siblings.
const MERGED: [&str; 4] = ["$ref", "allOf", "anyOf", "oneOf"];
const ANNOTATIONS: [&str; 14] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "discriminator",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

pub(super) struct Normalization {
    pub(super) schema: Value,
    /// Whether an object accepts names besides its listed ones.
    pub(super) free_names: bool,
}

/// Resolves references, drops annotations and narrows bounds.
pub(super) fn normalized(root: &Value) -> Result<Normalization> {
    let draft = Draft::of(root);
    let mut writer = Writer {
        resources: Resources::new(root, draft),
        draft,
        merged: merges(root),
        names: HashMap::from([(std::ptr::from_ref(root), "#".to_owned())]),
        queue: VecDeque::new(),
        copied: Vec::new(),
        step: None,
        schemas: 0,
        free_names: false,
    };
    let base: Rc<str> = "".into();
    let mut schema = writer.schema(root, &base, "#")?;
    let mut definitions = Members::new();
    while let Some((name, target, reference)) = writer.queue.pop_front() {
        let written = writer.schema(target.schema, &target.base, &reference)?;
        definitions.insert(name, written);
    }
    if let Value::Object(members) = &mut schema {
        if let Some(named) = root.get("$schema") {
            members.insert("$schema".into(), named.clone());
        }
        if !definitions.is_empty() {
            members.insert("$defs".into(), definitions.into());
        }
    }
    Ok(Normalization {
        schema,
        free_names: writer.free_names,
    })
}

/// Whether any subschemas are merged with their siblings. Errs towards true, as it searches data
/// too.
fn merges(value: &Value) -> bool {
    match value {
        Value::Object(members) => {
            let constrains = |name: &&String| !ANNOTATIONS.contains(&name.as_str());
            let alone = members.keys().filter(constrains).count() < 2;
            members.contains_key("allOf")
                || (!alone && MERGED.iter().any(|name| members.contains_key(*name)))
                || members.values().any(merges)
        }
        Value::Array(items) => items.iter().any(merges),
        _ => false,
    }
}

struct Writer<'a> {
    resources: Resources<'a>,
    draft: Draft,
    merged: bool,
    /// The reference to each named schema, by the schema's address in memory.
    names: HashMap<*const Value, String>,
    /// Schemas still to be written: name in `$defs`, schema, and the first reference to it.
    queue: VecDeque<(String, Target<'a>, String)>,
    /// Schemas that are being copied into a branch of `oneOf`, to detect cycles.
    copied: Vec<*const Value>,
    /// The common multiple of all `multipleOf` so far, if schemas are merged.
    step: Option<Multiple>,
    schemas: usize,
    free_names: bool,
}

impl<'a> Writer<'a> {
    fn schema(&mut self, schema: &'a Value, outer: &Rc<str>, place: &str) -> Result<Value> {
        self.schemas += 1;
        if self.schemas > MOST_SCHEMAS {
            return Err(GrammarError::invalid("the schema is too large"));
        }
        let members = match schema {
            Value::Object(members) => members,
            Value::Bool(_) => return Ok(schema.clone()),
            other => return Err(mistyped("a schema", place, "an object or a boolean", other)),
        };
        let base = self.resources.base(schema, outer);
        let mut out = Members::new();
        if self.draft <= Draft::Seven && members.contains_key("$ref") {
            self.reference(members, &base, place, &mut out)?;
            return Ok(out.into());
        }
        keywords::check(members, self.draft, place)?;
        self.numbers(members, place, &mut out)?;
        for (name, value) in members {
            match name.as_str() {
                "$ref" => self.reference(members, &base, place, &mut out)?,
                "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                    let copies = name == "oneOf";
                    let list = self.list(value, name, &base, place, copies)?;
                    out.insert(name.clone(), list);
                }
                "items" if value.is_array() => {
                    let list = self.list(value, name, &base, place, false)?;
                    out.insert(name.clone(), list);
                }
                "items" | "additionalItems" | "additionalProperties" => {
                    let written = self.schema(value, &base, &format!("{place}/{name}"))?;
                    out.insert(name.clone(), written);
                }
                "unevaluatedProperties" if keywords::closes(members, name, value) => {
                    out.entry("additionalProperties")
                        .or_insert(Value::Bool(false));
                }
                "properties" | "patternProperties" => {
                    let map = self.map(value, name, &base, place)?;
                    out.insert(name.clone(), map);
                }
                "const" | "enum" => {
                    check_constant(value, name, place)?;
                    out.insert(name.clone(), value.clone());
                }
                "format" => match value.as_str() {
                    Some(format) if FORMATS.contains(&format) => {
                        out.insert(name.clone(), value.clone());
                    }
                    Some(_) => {}
                    None => return Err(mistyped(name, place, "a string", value)),
                },
                "type" if !out.contains_key("type") => {
                    check_type(value, place)?;
                    out.insert(name.clone(), value.clone());
                }
                "type" => {}
                "required" => {
                    let names = value.as_array();
                    if !names.is_some_and(|names| names.iter().all(Value::is_string)) {
                        return Err(mistyped(name, place, "a list of strings", value));
                    }
                    out.insert(name.clone(), value.clone());
                }
                "pattern" => {
                    if !value.is_string() {
                        return Err(mistyped(name, place, "a string", value));
                    }
                    out.insert(name.clone(), value.clone());
                }
                name => count(name, value, place, &mut out)?,
            }
        }
        objects::check_count(&out, place)?;
        self.free_names |= objects::has_free_names(&out);
        Ok(out.into())
    }

    fn list(
        &mut self,
        value: &'a Value,
        name: &str,
        base: &Rc<str>,
        place: &str,
        copies: bool,
    ) -> Result<Value> {
        let items = value
            .as_array()
            .ok_or_else(|| mistyped(name, place, "a list", value))?;
        let mut out = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let place = format!("{place}/{name}/{i}");
            out.push(match copies {
                true => self.branch(item, base, &place)?,
                false => self.schema(item, base, &place)?,
            });
        }
        Ok(out.into())
    }

    /// A branch of `oneOf`, inlined so that llguidance can see that two branches exclude each
    /// other.
    fn branch(&mut self, schema: &'a Value, outer: &Rc<str>, place: &str) -> Result<Value> {
        let members = schema.as_object();
        let constrains = |name: &&String| !ANNOTATIONS.contains(&name.as_str());
        let only = members.and_then(|members| {
            let alone = members.keys().filter(constrains).count() == 1;
            members.get("$ref").filter(|_| alone)?.as_str()
        });
        if let Some(reference) = only {
            let base = self.resources.base(schema, outer);
            if let Some(target) = self.resources.find(reference, &base) {
                let address = std::ptr::from_ref(target.schema);
                if !self.copied.contains(&address) {
                    self.copied.push(address);
                    let copy = self.branch(target.schema, &target.base, place);
                    self.copied.pop();
                    return copy;
                }
            }
        }
        self.schema(schema, outer, place)
    }

    fn map(&mut self, value: &'a Value, name: &str, base: &Rc<str>, place: &str) -> Result<Value> {
        let members = value
            .as_object()
            .ok_or_else(|| mistyped(name, place, "an object", value))?;
        let mut out = Members::new();
        for (key, schema) in members {
            let key_token = key.replace('~', "~0").replace('/', "~1");
            let place = format!("{place}/{name}/{key_token}");
            out.insert(key.clone(), self.schema(schema, base, &place)?);
        }
        Ok(out.into())
    }

    fn reference(
        &mut self,
        members: &'a Members,
        base: &Rc<str>,
        place: &str,
        out: &mut Members,
    ) -> Result<()> {
        let value = members.get("$ref").unwrap_or(&Value::Null);
        let reference = value.as_str();
        let reference = reference.ok_or_else(|| mistyped("$ref", place, "a string", value))?;
        let Some(target) = self.resources.find(reference, base) else {
            let reason = format!("points to nothing in the schema: {reference:.80}");
            return Err(refused("$ref", place, &reason));
        };
        let address = std::ptr::from_ref(target.schema);
        let name = match self.names.get(&address) {
            Some(name) => name.clone(),
            None => {
                let name = format!("{}", self.names.len());
                let full = format!("#/$defs/{name}");
                self.names.insert(address, full.clone());
                self.queue.push_back((name, target, reference.to_owned()));
                full
            }
        };
        out.insert("$ref".into(), name.into());
        Ok(())
    }

    fn numbers(&mut self, members: &'a Members, place: &str, out: &mut Members) -> Result<()> {
        let types: Vec<&str> = match members.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => vec!["number"],
        };
        let number = types.contains(&"number");
        if !number && !types.contains(&"integer") {
            return Ok(());
        }
        if number && types.contains(&"integer") {
            // `number` includes integers.
            let others = types.iter().filter(|name| **name != "integer");
            let others: Vec<Value> = others.map(|name| (*name).into()).collect();
            out.insert("type".into(), others.into());
        }
        let mut steps = Vec::new();
        if let Some(value) = members.get("multipleOf") {
            let multiple = Multiple::of(value, place)?;
            if self.merged {
                let common = self
                    .step
                    .map_or(Some(multiple), |step| step.common(multiple));
                let reason = "has no small common multiple with another one";
                self.step = Some(common.ok_or_else(|| refused("multipleOf", place, reason))?);
                out.insert("multipleOf".into(), value.clone());
            } else {
                steps = multiple.alternatives();
            }
        }
        let mut bounds = numbers::bounds(members, !number, self.merged, place)?;
        if members.contains_key("anyOf") || members.contains_key("oneOf") {
            bounds.drain(..bounds.len() - 1);
            steps.drain(..steps.len().saturating_sub(1));
        }
        let mut alternatives: Vec<Members> = Vec::new();
        for step in &steps {
            for bounds in &bounds {
                let mut alternative = bounds.clone();
                alternative.insert("multipleOf".into(), step.clone());
                alternatives.push(alternative);
            }
        }
        if steps.is_empty() {
            alternatives = bounds;
        }
        if alternatives.len() == 1 {
            out.extend(alternatives.into_iter().flatten());
            return Ok(());
        }
        // Each alternative has all types, so that it also allows values other than numbers.
        let types = out.get("type").or(members.get("type"));
        let typed = alternatives.into_iter().map(|mut alternative| {
            alternative.extend(types.map(|types| ("type".to_owned(), types.clone())));
            Value::Object(alternative)
        });
        out.insert("anyOf".into(), typed.collect());
        Ok(())
    }
}

/// Copies a count; omits a maximum that no output can reach.
fn count(name: &str, value: &Value, place: &str, out: &mut Members) -> Result<()> {
    let Some((_, least)) = COUNTS.iter().find(|(known, _)| *known == name) else {
        return Ok(());
    };
    let number = value
        .as_f64()
        .filter(|number| *number >= 0.0 && number.fract() == 0.0);
    let number = number.ok_or_else(|| mistyped(name, place, "a whole number from 0", value))?;
    match number as u64 {
        ENDLESS.. if *least => Err(refused(name, place, "is more than an output can have")),
        ENDLESS.. => Ok(()),
        number => {
            out.insert(name.into(), number.into());
            Ok(())
        }
    }
}

fn check_type(value: &Value, place: &str) -> Result<()> {
    const TYPES: [&str; 7] = [
        "array", "boolean", "integer", "null", "number", "object", "string",
    ];
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    let right = match value {
        Value::Array(names) => names.iter().all(known),
        value => known(value),
    };
    match right {
        true => Ok(()),
        false => {
            let expected = format!("one of {}, or a list of them", TYPES.join(", "));
            Err(mistyped("type", place, &expected, value))
        }
    }
}

fn check_constant(value: &Value, keyword: &str, place: &str) -> Result<()> {
    match value {
        Value::Number(number) if !numbers::is_exact(number) => {
            let reason = format!("has a number that no double holds: {number}");
            Err(refused(keyword, place, &reason))
        }
        Value::Array(items) => items
            .iter()
            .try_for_each(|item| check_constant(item, keyword, place)),
        Value::Object(members) => members
            .values()
            .try_for_each(|item| check_constant(item, keyword, place)),
        _ => Ok(()),
    }
}
