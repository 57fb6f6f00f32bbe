//! Arbitrary schemas and structural tags: each compiles or is an error, always allows a token, and
//! a complete output of a schema is JSON.
use std::time::Duration;

use penstock_structured_output::{Compiler, Matcher, Vocabulary};
use penstock_wire::{Grammar, GrammarKind};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::value::RawValue;
use serde_json::{Value, json};

const END: u32 = 0;
const LIMIT: Duration = Duration::from_secs(20);

/// The end token and all printable characters.
fn tokens() -> Vec<Vec<u8>> {
    let characters = (b' '..=b'~').map(|byte| vec![byte]);
    [b"<end>".to_vec()]
        .into_iter()
        .chain([b"\n".to_vec()])
        .chain(characters)
        .collect()
}

fn compiled(kind: GrammarKind, value: &Value) -> Option<Matcher> {
    let vocabulary = Vocabulary::of_tokens(tokens(), vec![("<end>".to_owned(), END)]).unwrap();
    let grammar = Grammar::new(kind, value.to_string());
    let compiled = Compiler::new(vocabulary).compile(&grammar, LIMIT).ok()?;
    Some(compiled.matcher(vec![END]))
}

/// Follows a path through the masks. Returns the text if it is complete.
fn walked(mut matcher: Matcher, path: &[Index]) -> Option<String> {
    let tokens = tokens();
    let mut text = Vec::new();
    for choice in path {
        // An error means that the matcher exceeded a bound.
        let mask = matcher.mask().ok()?;
        let allowed: Vec<u32> = (0..tokens.len() as u32)
            .filter(|id| mask.allows(*id))
            .collect();
        assert!(!allowed.is_empty(), "{}", String::from_utf8_lossy(&text));
        let token = *choice.get(&allowed);
        if !matcher.accept(token).ok()? {
            panic!("a token of the mask is refused");
        }
        if token == END {
            return Some(String::from_utf8(text).unwrap());
        }
        text.extend(&tokens[token as usize]);
    }
    None
}

fn leaf() -> impl Strategy<Value = Value> {
    let small = || -3i64..9;
    prop_oneof![
        select(vec![
            json!(true),
            json!({}),
            json!({"type": "null"}),
            json!({"type": "boolean"}),
            json!({"type": "integer"}),
            json!({"type": "number"}),
            json!({"type": "string"}),
            json!({"type": ["string", "null"]}),
            json!({"enum": ["a", 1, null, {"b": []}]}),
            json!({"enum": []}),
            json!({"const": "é\"\\"}),
            json!({"type": "string", "format": "date"}),
            json!({"type": "string", "format": "uuid"}),
            json!({"$ref": "#"}),
            json!({"$ref": "#/$defs/a"}),
            json!({"$ref": "http://example.com/s"}),
            json!({"type": "nothing"}),
            json!(false),
            json!(3),
        ]),
        (small(), small()).prop_map(|(low, high)| json!({"type": "integer", "minimum": low,
            "maximum": high})),
        (small(), small()).prop_map(|(low, high)| json!({"type": "string", "minLength": low,
            "maxLength": high})),
        (small(), 0.0..3.0).prop_map(|(low, step)| json!({"type": "number",
            "exclusiveMinimum": low, "multipleOf": step})),
        "[a-c^$()|*+?\\[\\]{},0-2-]{0,12}".prop_map(|p| json!({"type": "string", "pattern": p})),
    ]
}

fn schema() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(3, 16, 4, |inner| {
        let some = prop::collection::vec(inner.clone(), 0..4);
        let members = prop::collection::btree_map("[a-c]|\\$defs", inner.clone(), 0..4);
        let keys = prop::collection::vec("[a-d]", 0..3);
        prop_oneof![
            (members, keys, inner.clone()).prop_map(|(properties, required, more)| json!({
                "type": "object", "properties": properties, "required": required,
                "additionalProperties": more, "$defs": {"a": {"type": "null"}}})),
            (inner.clone(), -1i64..4, -1i64..4).prop_map(|(items, least, most)| json!({
                "type": "array", "items": items, "minItems": least, "maxItems": most})),
            (some.clone(), inner.clone()).prop_map(|(prefix, items)| json!({
                "type": "array", "prefixItems": prefix, "items": items})),
            (select(vec!["anyOf", "oneOf", "allOf"]), some)
                .prop_map(|(name, branches)| json!({name: branches})),
            (
                select(vec!["not", "contains", "if", "propertyNames"]),
                inner
            )
                .prop_map(|(name, other)| json!({name: other})),
        ]
    })
}

/// A structural tag in either format, with invalid parts.
fn tag() -> impl Strategy<Value = Value> {
    let text = || "[<a/>]{0,4}";
    prop_oneof![
        (text(), schema(), text(), text()).prop_map(|(begin, schema, end, trigger)| json!({
            "structures": [{"begin": begin, "schema": schema, "end": end}],
            "triggers": [trigger]})),
        (text(), schema(), text()).prop_map(
            |(begin, schema, end)| json!({"type": "structural_tag",
            "format": {"type": "tag", "begin": begin, "end": end,
            "content": {"type": "json_schema", "json_schema": schema}}})
        ),
        (text(), "[ab*+()]{0,5}").prop_map(|(value, pattern)| json!({"type": "structural_tag",
            "format": {"type": "sequence", "elements": [
                {"type": "const_string", "value": value},
                {"type": "regex", "pattern": pattern}, {"type": "any_text"}]}})),
        schema(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_ends_under_a_schema_is_json(
        schema in schema(), path in prop::collection::vec(any::<Index>(), 0..60),
    ) {
        if let Some(matcher) = compiled(GrammarKind::JsonSchema, &schema)
            && let Some(text) = walked(matcher, &path)
        {
            // JSON has numbers beyond f64, such as 1E310: check the text, not its values.
            let read = serde_json::from_str::<&RawValue>(&text);
            prop_assert!(read.is_ok(), "{text:?} under {schema}");
        }
    }

    #[test]
    fn structural_tags_of_any_kind_are_followed_or_refused(
        tag in tag(), path in prop::collection::vec(any::<Index>(), 0..40),
    ) {
        if let Some(matcher) = compiled(GrammarKind::StructuralTag, &tag) {
            walked(matcher, &path);
        }
    }
}
