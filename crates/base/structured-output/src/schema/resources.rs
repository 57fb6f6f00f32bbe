//! Resolution of `$ref`: locations in the schema by address, anchor or JSON pointer.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::keywords::Draft;

/// A schema, and the base address of its own `$id`.
#[derive(Clone)]
pub(super) struct Target<'a> {
    pub(super) schema: &'a Value,
    pub(super) base: Rc<str>,
}

/// The addresses of a schema and its subschemas.
pub(super) struct Resources<'a> {
    draft: Draft,
    by_address: HashMap<String, Target<'a>>,
}

/// Keywords with one schema as value.
const ONE: [&str; 11] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords with a list of schemas as value.
const LISTS: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords with a map of schemas as value.
const MAPS: [&str; 5] = [
    "$defs",
    "definitions",
    "dependentSchemas",
    "patternProperties",
    "properties",
];

impl<'a> Resources<'a> {
    pub(super) fn new(root: &'a Value, draft: Draft) -> Self {
        let mut resources = Self {
            draft,
            by_address: HashMap::new(),
        };
        let base: Rc<str> = "".into();
        resources.add(base.to_string(), root, &base);
        resources.collect(root, &base);
        resources
    }

    fn add(&mut self, address: String, schema: &'a Value, base: &Rc<str>) {
        let base = Rc::clone(base);
        let target = Target { schema, base };
        self.by_address.entry(address).or_insert(target);
    }

    /// Base address of references within a schema.
    pub(super) fn base(&self, schema: &Value, base: &Rc<str>) -> Rc<str> {
        match self.id(schema).filter(|id| !id.starts_with('#')) {
            Some(id) => joined(base, id.trim_end_matches('#')).into(),
            None => Rc::clone(base),
        }
    }

    fn id<'s>(&self, schema: &'s Value) -> Option<&'s str> {
        let members = schema.as_object()?;
        // Up to draft 7 a reference overrides its siblings.
        if self.draft <= Draft::Seven && members.contains_key("$ref") {
            return None;
        }
        let name = if self.draft == Draft::Four {
            "id"
        } else {
            "$id"
        };
        members.get(name)?.as_str()
    }

    fn collect(&mut self, schema: &'a Value, outer: &Rc<str>) {
        let Some(members) = schema.as_object() else {
            return;
        };
        let base = self.base(schema, outer);
        if base != *outer {
            self.add(base.to_string(), schema, outer);
        }
        let id = self.id(schema).and_then(|id| id.strip_prefix('#'));
        let anchor = |name: &str| members.get(name).and_then(Value::as_str);
        let anchors = [id, anchor("$anchor"), anchor("$dynamicAnchor")];
        for anchor in anchors.into_iter().flatten() {
            self.add(format!("{base}#{anchor}"), schema, outer);
        }
        for inner in within(members) {
            self.collect(inner, &base);
        }
    }

    /// Resolves `reference` relative to `base`.
    pub(super) fn find(&self, reference: &str, base: &str) -> Option<Target<'a>> {
        let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let address = joined(base, address);
        let fragment = decoded(fragment)?;
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self
                .by_address
                .get(&format!("{address}#{fragment}"))
                .cloned();
        }
        let mut found = self.by_address.get(&address)?.clone();
        for part in fragment.split('/').skip(1) {
            let name = part.replace("~1", "/").replace("~0", "~");
            found.base = self.base(found.schema, &found.base);
            found.schema = match found.schema {
                Value::Object(members) => members.get(&name)?,
                Value::Array(items) => items.get(name.parse::<usize>().ok()?)?,
                _ => return None,
            };
        }
        Some(found)
    }
}

/// The direct subschemas of a schema.
fn within(members: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let get = |name: &&str| members.get(*name);
    let one = ONE.iter().filter_map(get);
    let lists = LISTS.iter().filter_map(get).filter_map(Value::as_array);
    let maps = MAPS.iter().filter_map(get).filter_map(Value::as_object);
    one.chain(lists.flatten()).chain(maps.flat_map(Map::values))
}

/// Resolves a reference without a fragment to an absolute one (RFC 3986, section 5).
fn joined(base: &str, reference: &str) -> String {
    let scheme = |text: &str| {
        let length = text.find(':')?;
        let letters = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let named = length > 0 && text[..length].chars().all(letters);
        named.then_some(length + 1)
    };
    if reference.is_empty() {
        return base.to_owned();
    }
    if scheme(reference).is_some() {
        return reference.to_owned();
    }
    let start = scheme(base).unwrap_or(0);
    if reference.starts_with("//") {
        return format!("{}{reference}", &base[..start]);
    }
    let path = match base[start..].strip_prefix("//") {
        Some(rest) => base.len() - rest.len() + rest.find('/').unwrap_or(rest.len()),
        None => start,
    };
    let (origin, path) = base.split_at(path);
    let merged = match reference.starts_with('/') {
        true => reference.to_owned(),
        false => match path.rsplit_once('/') {
            Some((directory, _)) => format!("{directory}/{reference}"),
            None if origin.is_empty() => reference.to_owned(),
            None => format!("/{reference}"),
        },
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in merged.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("{origin}{}", parts.join("/"))
}

/// Decodes `%XX` in a fragment; `None` if an escape is malformed or the bytes are not UTF-8.
fn decoded(fragment: &str) -> Option<Cow<'_, str>> {
    let escaped = |part: &str| {
        let digits = part.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    // The decoder copies malformed escapes unchanged, so they are rejected here.
    let whole = fragment.split('%').skip(1).all(escaped);
    let text = percent_decode_str(fragment).decode_utf8().ok();
    text.filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_escapes_have_two_hex_digits() {
        for (fragment, text) in [
            ("/$defs/a%20b", Some("/$defs/a b")),
            ("/%C3%A9%c3%a9", Some("/éé")),
            ("%25", Some("%")),
            ("/a+b", Some("/a+b")),
            ("%+f", None),
            ("%-1", None),
            ("% f", None),
            ("%f", None),
            ("%", None),
            ("%é", None),
            ("%ff", None),
        ] {
            assert_eq!(decoded(fragment).as_deref(), text, "{fragment}");
        }
    }

    /// Examples of RFC 3986, section 5.4.
    #[test]
    fn references_are_made_absolute() {
        for (reference, absolute) in [
            ("g:h", "g:h"),
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g"),
            ("", "http://a/b/c/d"),
            ("../g", "http://a/b/g"),
            ("../../g", "http://a/g"),
        ] {
            assert_eq!(joined("http://a/b/c/d", reference), absolute, "{reference}");
        }
        assert_eq!(joined("", "item.json"), "item.json");
        assert_eq!(joined("http://a", "item.json"), "http://a/item.json");
    }
}
