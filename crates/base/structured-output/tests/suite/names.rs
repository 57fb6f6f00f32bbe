//! Names spelled with escapes are equal to the names that they spell.
use std::time::Duration;

use penstock_structured_output::{Compiler, Vocabulary};
use penstock_wire::{Grammar, GrammarKind};
use serde_json::{Value, json};

/// Whether a schema allows a text, byte by byte; `None` if the schema does not compile.
fn allows(schema: &Value, text: &str) -> Option<bool> {
    let words = (0..=255u8).map(|byte| vec![byte]);
    let words = [b"<end>".to_vec()].into_iter().chain(words).collect();
    let vocabulary = Vocabulary::of_tokens(words, vec![("<end>".to_owned(), 0)]).unwrap();
    let grammar = Grammar::new(GrammarKind::JsonSchema, schema.to_string());
    let compiled = Compiler::new(vocabulary).compile(&grammar, Duration::from_secs(20));
    let tokens: Vec<u32> = text
        .bytes()
        .map(|byte| u32::from(byte) + 1)
        .chain([0])
        .collect();
    Some(compiled.ok()?.allows(&tokens, vec![0]))
}

#[test]
fn names_spelled_with_escapes_do_not_pass_patterns_by() {
    let pattern = || json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}}});
    let with = |name: &str, value: Value| {
        let mut schema = pattern();
        schema[name] = value;
        schema
    };
    let listed = json!({"b": {"type": "string"}});
    for schema in [
        pattern(),
        with("additionalProperties", json!({"type": "string"})),
        with("additionalProperties", json!(true)),
        with("properties", listed.clone()),
        json!({"allOf": [pattern()]}),
        json!({"allOf": [pattern(), {"properties": listed}]}),
        json!({"anyOf": [pattern(), {"type": "null"}]}),
        json!({"$ref": "#/$defs/p", "$defs": {"p": pattern()}}),
    ] {
        assert_eq!(allows(&schema, r#"{"ab": 1}"#), Some(true), "{schema}");
        for wrong in [
            r#"{"ab": "x"}"#,
            r#"{"\u0061b": "x"}"#,
            r#"{"\u0061": "x"}"#,
        ] {
            assert_eq!(allows(&schema, wrong), Some(false), "{schema} {wrong}");
        }
    }
    // Here a name that matches the pattern has both types.
    let both = json!({"allOf": [pattern(), {"additionalProperties": {"type": "string"}}]});
    assert_eq!(allows(&both, r#"{"b": "x"}"#), Some(true));
    assert_eq!(allows(&both, r#"{"\u0061b": "x"}"#), Some(false));
    let inner = json!({"type": "object", "patternProperties": {"^\\$": false}});
    let nested = json!({"type": "object", "additionalProperties": inner});
    assert_eq!(allows(&nested, r#"{"q": {"ref": 1}}"#), Some(true));
    assert_eq!(allows(&nested, r#"{"q": {"$ref": 1}}"#), Some(false));
    assert_eq!(allows(&nested, r#"{"q": {"\u0024ref": 1}}"#), Some(false));
}

#[test]
fn names_spelled_with_escapes_are_bound_by_what_is_listed() {
    for (schema, wrong) in [
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}},
                "patternProperties": {"^[a-c]$": {"type": "string"}},
                "additionalProperties": false}),
            r#"{"\u0061": "x"}"#,
        ),
        (
            json!({"type": "object", "additionalProperties": false,
                "patternProperties": {"^a": {"type": "integer"}, "^[^a]": {"type": "string"}}}),
            r#"{"\u0061b": "x"}"#,
        ),
        (
            json!({"type": "object", "additionalProperties": false,
                "patternProperties": {"^.$": {"type": "integer"}}}),
            r#"{"\u0061b": 1}"#,
        ),
        (
            json!({"type": "object", "properties": {"\n": {"type": "integer"}},
                "additionalProperties": {"type": "string"}}),
            r#"{"\n": "x"}"#,
        ),
        (
            json!({"type": "object", "properties": {"/": {"type": "integer"}},
                "additionalProperties": {"type": "string"}}),
            r#"{"\/": "x"}"#,
        ),
    ] {
        assert_eq!(allows(&schema, wrong), Some(false), "{schema}");
    }
}
