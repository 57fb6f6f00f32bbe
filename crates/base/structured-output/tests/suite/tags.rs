//! Structural tags: the outputs that they allow, in both formats.
use std::time::Duration;

use penstock_structured_output::{Compiled, Compiler, GrammarError, Vocabulary};
use penstock_wire::{Grammar, GrammarKind};
use serde_json::{Value, json};

const END: u32 = 256;
const CALL: u32 = 257;

/// One token per byte, an end token, and a special token `<call>`.
fn compile(tag: &Value) -> Result<Compiled, GrammarError> {
    let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    let special = [("<end>", END), ("<call>", CALL)];
    words.extend(special.map(|(text, _)| text.as_bytes().to_vec()));
    let special = special.map(|(text, id)| (text.to_owned(), id));
    let vocabulary = Vocabulary::of_tokens(words, special.to_vec()).unwrap();
    let grammar = Grammar::new(GrammarKind::StructuralTag, tag.to_string());
    Compiler::new(vocabulary).compile(&grammar, Duration::from_secs(20))
}

/// Whether `output` is allowed and complete; if it is not allowed, its allowed prefix.
fn read(compiled: &Compiled, output: &str) -> Result<bool, String> {
    let mut matcher = compiled.matcher(vec![END]);
    let mut taken = String::new();
    while taken.len() < output.len() {
        let rest = &output[taken.len()..];
        let (token, text) = match rest.strip_prefix("<call>") {
            Some(_) => (CALL, "<call>"),
            None => (u32::from(rest.as_bytes()[0]), &rest[..1]),
        };
        let allowed = matcher.mask().unwrap().allows(token);
        assert_eq!(matcher.accept(token).unwrap(), allowed);
        if !allowed {
            return Err(taken);
        }
        taken.push_str(text);
    }
    let whole = matcher.is_whole().unwrap();
    if let Ok(mask) = matcher.mask() {
        assert_eq!(mask.allows(END), whole, "{output}");
    }
    Ok(whole)
}

fn check(tag: &Value, cases: &[(&str, Result<bool, &str>)]) {
    let compiled = compile(tag).unwrap();
    for (output, expected) in cases {
        let found = read(&compiled, output);
        let found = found.as_ref().map(|whole| *whole).map_err(String::as_str);
        assert_eq!(found, *expected, "{output}");
    }
}

/// Two functions whose begins share one trigger.
fn tags() -> Value {
    let one = json!({"type": "json_schema", "json_schema": {"const": 1}});
    json!([
        {"type": "tag", "begin": "<f=a>", "content": one, "end": "</f>"},
        {"type": "tag", "begin": "<f=b>", "content": {"type": "any_text"}, "end": "</f>"},
    ])
}

fn triggered(more: Value) -> Value {
    let mut format = json!({"type": "triggered_tags", "triggers": ["<f="], "tags": tags()});
    let members = format.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    json!({"type": "structural_tag", "format": format})
}

#[test]
fn text_is_free_until_a_trigger() {
    check(
        &triggered(json!({})),
        &[
            ("", Ok(true)),
            ("any <f text </f> <", Ok(true)),
            ("x <f=a>1</f> y <f=b>x<f=</f>", Ok(true)),
            ("x <f=a>1</f> y <f=", Ok(false)),
            ("x <f=c", Err("x <f=")),
            ("x <f=a>2", Err("x <f=a>")),
            ("x <f=a>1</f><f=a>2", Err("x <f=a>1</f><f=a>")),
        ],
    );
}

#[test]
fn how_many_tags() {
    check(
        &triggered(json!({"at_least_one": true})),
        &[
            ("<f=a>1</f>", Ok(true)),
            ("<f=a>1</f> x <f=b></f>!", Ok(true)),
            ("x", Err("")),
        ],
    );
    check(
        &triggered(json!({"stop_after_first": true})),
        &[
            ("x", Ok(true)),
            ("x<f=a>1</f>", Ok(true)),
            ("x<f=a>1</f>x", Err("x<f=a>1</f>")),
        ],
    );
    check(
        &triggered(json!({"at_least_one": true, "stop_after_first": true})),
        &[("<f=a>1</f>", Ok(true)), ("<f=a>1</f>x", Err("<f=a>1</f>"))],
    );
}

/// Free text before a trigger cannot contain another trigger.
#[test]
fn every_trigger_counts_whether_text_or_a_special_token() {
    let one = |begin: &str| {
        let content = json!({"type": "const_string", "value": "1"});
        json!({"type": "tag", "begin": begin, "content": content, "end": "."})
    };
    let triggers = json!(["<call>", "call:", "ask:"]);
    let tags = json!([one("<call>a"), one("call:b"), one("ask:c")]);
    let format = json!({"type": "triggered_tags", "triggers": triggers, "tags": tags});
    check(
        &json!({"type": "structural_tag", "format": format}),
        &[
            ("x <call>a1. call:b1. ask:c1. x", Ok(true)),
            ("x <call>b", Err("x <call>")),
            ("x call:a", Err("x call:")),
            ("call:ask:", Err("call:")),
            ("x ask:b", Err("x ask:")),
        ],
    );
}

#[test]
fn the_older_form() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
        "required": ["a"], "additionalProperties": false});
    let structure = json!({"begin": "<f=a>", "schema": schema, "end": "</f>"});
    let tag = json!({"type": "structural_tag", "structures": [structure], "triggers": ["<f="]});
    check(
        &tag,
        &[
            ("text", Ok(true)),
            ("so <f=a>{\"a\": 7}</f> and", Ok(true)),
            ("so <f=a>{\"a\": \"", Err("so <f=a>{\"a\": ")),
            ("so <f=b", Err("so <f=")),
        ],
    );
}

#[test]
fn separated_tags() {
    let format = json!({"type": "tags_with_separator", "tags": tags(), "separator": "; "});
    check(
        &json!({"type": "structural_tag", "format": format}),
        &[
            ("", Ok(true)),
            ("<f=a>1</f>; <f=b>x</f>", Ok(true)),
            ("<f=a>1</f>;", Ok(false)),
            ("<f=a>1</f><", Err("<f=a>1</f>")),
        ],
    );
}

#[test]
fn what_no_output_could_mean_is_refused() {
    for (format, reason) in [
        (
            json!({"type": "triggered_tags", "triggers": ["<g"], "tags": tags()}),
            "trigger",
        ),
        (
            json!({"type": "triggered_tags", "triggers": [""], "tags": tags()}),
            "empty",
        ),
        (
            json!({"type": "triggered_tags", "triggers": ["<f="], "tags": [], "x": 1}),
            "x",
        ),
        (json!({"type": "sequence", "elements": []}), "empty"),
        (json!({"type": "poem"}), "poem"),
    ] {
        let error = compile(&json!({"type": "structural_tag", "format": format}));
        let error = error.err().unwrap().to_string();
        assert!(error.contains(reason), "{format}: {error}");
    }
}

#[test]
fn errors_name_the_member_what_it_must_be_and_what_it_is() {
    for (format, reason) in [
        (json!(3), "a format or a tag must be an object, got 3"),
        (json!({"type": 1}), "type must be a string, got 1"),
        (
            json!({"type": "regex"}),
            "pattern must be a string, got nothing",
        ),
        (
            json!({"type": "or", "elements": {}}),
            "elements must be a list, got {}",
        ),
        (
            json!({"type": "tag", "begin": "a", "end": 1}),
            "end must be a string or a list of strings, got 1",
        ),
        (
            json!({"type": "triggered_tags", "triggers": [1], "tags": tags()}),
            "triggers must be a list of strings, got [1]",
        ),
        (
            json!({"type": "triggered_tags", "triggers": ["<"], "tags": tags(), "at_least_one": 1}),
            "at_least_one must be true or false, got 1",
        ),
        (
            json!({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}),
            "any_text must stand last, or in a tag with an end",
        ),
    ] {
        let error = compile(&json!({"type": "structural_tag", "format": format}));
        assert_eq!(error.err().unwrap().to_string(), reason, "{format}");
    }
}

/// In a tag that compiles, the schemas need no separate check.
#[test]
fn a_schema_that_does_not_compile_alone_does_not_in_a_tag() {
    let limit = Duration::from_secs(20);
    let words = (0..=255).map(|byte| vec![byte]).chain([b"<end>".to_vec()]);
    let vocabulary = Vocabulary::of_tokens(words.collect(), vec![("<end>".into(), END)]).unwrap();
    let compiler = Compiler::new(vocabulary);
    let never = json!({"type": "object", "required": ["n"], "properties": {"n": {"$ref": "#"}}});
    for schema in [
        json!({"not": {}}),
        json!({"uniqueItems": true}),
        json!({"$ref": "#/nowhere"}),
        json!({"oneOf": [{"type": "integer"}, {"minimum": 2}]}),
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        json!({"allOf": [{"type": "string"}, {"type": "integer"}]}),
        json!({"type": "string", "pattern": "(?=a)"}),
        json!({"enum": []}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"x-guidance": {"lenient": true}}),
        never,
    ] {
        let alone = compiler.check_schema(&schema.to_string(), limit);
        assert!(alone.is_err(), "{schema}");
        let any = json!({"type": "json_schema", "json_schema": {"type": "object"}});
        let one = json!({"type": "json_schema", "json_schema": schema});
        let tag = |content: &Value, begin: &str| {
            json!({"type": "tag", "begin": begin,
                "content": content, "end": "</f>"})
        };
        let both = json!([tag(&any, "<f=a>"), tag(&one, "<f=b>")]);
        for format in [
            json!({"type": "or", "elements": both}),
            json!({"type": "triggered_tags", "triggers": ["<f="], "tags": both}),
            json!({"type": "tags_with_separator", "tags": both, "separator": ""}),
        ] {
            let tag = json!({"type": "structural_tag", "format": format});
            let grammar = Grammar::new(GrammarKind::StructuralTag, tag.to_string());
            assert!(compiler.compile(&grammar, limit).is_err(), "{format}");
        }
    }
}
