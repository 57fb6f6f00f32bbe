//! Strict tools where text is free: what the grammar allows is what the parser reads as calls.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use penstock_output_parsers::{
    OutputEvent, OutputParser, ParserRules, ReasoningFormat, ToolFormat, ToolSchema,
};
use penstock_structured_output::{Compiler, Matcher, Vocabulary};
use penstock_wire::{Grammar, GrammarKind};
use serde_json::{Value, json};

const END: u32 = 256;
const LIMIT: Duration = Duration::from_secs(20);

/// Every byte, an end, and special tokens.
struct Bytes {
    special: Vec<(String, u32)>,
    compiler: Compiler,
}

impl Bytes {
    fn new(marks: &[&str]) -> Self {
        let mut words: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let mut special = vec![("<end>".to_owned(), END)];
        special.extend(
            marks
                .iter()
                .zip(END + 1..)
                .map(|(&mark, id)| (mark.to_owned(), id)),
        );
        words.extend(special.iter().map(|(text, _)| text.clone().into_bytes()));
        let vocabulary = Vocabulary::of_tokens(words, special.clone()).unwrap();
        Self {
            special,
            compiler: Compiler::new(vocabulary),
        }
    }

    fn matcher(&self, tag: &Value) -> Matcher {
        let grammar = Grammar::new(GrammarKind::StructuralTag, tag.to_string());
        let compiled = self.compiler.compile(&grammar, LIMIT);
        compiled.unwrap().matcher(vec![END])
    }

    /// How much of an output the grammar allows, and whether that is whole.
    fn follow(&self, tag: &Value, output: &str) -> (String, bool) {
        let (mut matcher, mut taken) = (self.matcher(tag), 0);
        while taken < output.len() {
            let rest = &output.as_bytes()[taken..];
            let found = self
                .special
                .iter()
                .find(|(text, _)| rest.starts_with(text.as_bytes()));
            let (token, bytes) = match found {
                Some((text, id)) => (*id, text.len()),
                None => (u32::from(rest[0]), 1),
            };
            let allowed = matcher.mask().unwrap().allows(token);
            assert_eq!(matcher.accept(token).unwrap(), allowed);
            if !allowed {
                break;
            }
            taken += bytes;
        }
        let whole = matcher.is_whole().unwrap();
        (
            String::from_utf8_lossy(&output.as_bytes()[..taken]).into_owned(),
            whole,
        )
    }

    fn allows(&self, tag: &Value, output: &str) -> bool {
        self.follow(tag, output) == (output.to_owned(), true)
    }
}

/// `weather` is strict, `search` is not.
fn tools() -> Vec<ToolSchema> {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}},
        "required": ["city"], "additionalProperties": false});
    let tool = |name: &str, strict| ToolSchema {
        name: name.to_owned(),
        parameters: parameters.as_object().cloned(),
        strict,
    };
    vec![tool("weather", true), tool("search", false)]
}

fn formats() -> impl Iterator<Item = ToolFormat> {
    let all = ToolFormat::names().map(|name| ToolFormat::by_name(name).unwrap());
    all.filter(|format| format.is_marked())
        .map(ToolFormat::constrained)
}

/// One call in the format that `format` demands.
fn call(format: ToolFormat, name: &str, arguments: &str) -> String {
    fn sample(format: &Value, arguments: &str) -> String {
        let text = |name: &str| format[name].as_str().unwrap();
        let list = |name: &str| format[name].as_array().unwrap().iter();
        match format["type"].as_str().unwrap() {
            "sequence" => list("elements").map(|e| sample(e, arguments)).collect(),
            "const_string" => text("value").to_owned(),
            "regex" => "0".to_owned(),
            "json_schema" => arguments.to_owned(),
            "tag" => [
                text("begin"),
                &sample(&format["content"], arguments),
                text("end"),
            ]
            .concat(),
            _ => sample(&format["tags"][0], arguments),
        }
    }
    let tools = tools();
    let tag = format.demanding(tools.iter().filter(|tool| tool.name == name), false, None);
    sample(&tag["format"], arguments)
}

/// What is written before a call, and after it.
fn around(format: ToolFormat) -> (&'static str, &'static str) {
    match format {
        ToolFormat::Harmony => (
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
            "",
        ),
        ToolFormat::Llama3Json => ("", ""),
        _ => ("Well {\"name\": 1} < then: ", " Done?"),
    }
}

fn calls(format: ToolFormat, output: &str) -> Vec<String> {
    let rules = ParserRules {
        tools: Some((format, tools().into())),
        ..ParserRules::default()
    };
    let mut parser = OutputParser::new(&rules, "");
    let mut events = parser.push(output);
    events.extend(parser.finish());
    let mut calls: Vec<String> = Vec::new();
    for event in events {
        match event {
            OutputEvent::ToolCallStart { name, .. } => calls.push(name),
            OutputEvent::ToolCallArguments { text, .. } => {
                calls.last_mut().unwrap().push_str(&text)
            }
            _ => {}
        }
    }
    calls
}

/// With marks that are special tokens, and with marks that are text.
fn each(test: impl Fn(ToolFormat, &Bytes, &Value, bool)) {
    for format in formats() {
        for several in [true, false] {
            let tag = format.allowing(&tools(), several, None, false).unwrap();
            test(format, &Bytes::new(&format.marks()), &tag, several);
            if format != ToolFormat::Harmony {
                test(format, &Bytes::new(&[]), &tag, several);
            }
        }
    }
}

const RIGHT: &str = r#"{"city": "Rome"}"#;
const WRONG: &str = r#"{"city": 5}"#;

#[test]
fn text_without_a_call_is_free() {
    each(|format, bytes, tag, _| {
        let texts = ["Hello.", "  a\n{\"name\": \"b\"}, [1] <tool", ""];
        for text in texts {
            let text = match format {
                ToolFormat::Harmony => format!("<|channel|>final<|message|>{text}<|return|>"),
                _ => text.to_owned(),
            };
            assert!(bytes.allows(tag, &text), "{format:?}: {text}");
        }
    });
}

#[test]
fn calls_of_strict_tools_follow_their_schemas() {
    each(|format, bytes, tag, _| {
        let (before, _) = around(format);
        let output = format!("{before}{}", call(format, "weather", RIGHT));
        assert!(bytes.allows(tag, &output), "{format:?}: {output}");
        assert_eq!(calls(format, &output), [format!("weather{RIGHT}")]);
        let wrong = format!("{before}{}", call(format, "weather", WRONG));
        let (taken, whole) = bytes.follow(tag, &wrong);
        assert!(
            taken.ends_with("{\"city\": ") && !whole,
            "{format:?}: {taken}"
        );
    });
}

#[test]
fn other_tools_have_any_object_and_unknown_ones_none() {
    each(|format, bytes, tag, _| {
        let (before, _) = around(format);
        let free = call(format, "search", WRONG);
        assert!(bytes.allows(tag, &format!("{before}{free}")), "{format:?}");
        let unknown = free.replace("search", "delete");
        let (taken, whole) = bytes.follow(tag, &format!("{before}{unknown}"));
        assert!(!whole && !taken.contains("delete"), "{format:?}: {taken}");
    });
}

#[test]
fn text_and_calls_take_turns_unless_one_call_is_asked_for() {
    each(|format, bytes, tag, several| {
        let (before, after) = around(format);
        if after.is_empty() {
            return;
        }
        let (one, other) = (call(format, "weather", RIGHT), call(format, "search", "{}"));
        let output = format!("{before}{one}{before}{other}{after}");
        assert_eq!(bytes.allows(tag, &output), several, "{format:?}: {output}");
        assert_eq!(calls(format, &output).len(), 2);
    });
}

#[test]
fn an_output_that_begins_as_a_call_is_one() {
    let bytes = Bytes::new(&[]);
    let tag = ToolFormat::Llama3Json
        .allowing(&tools(), true, None, false)
        .unwrap();
    for (output, allowed) in [
        (r#"{"name": "weather", "parameters": {"city": "a"}}"#, true),
        (
            concat!(
                r#"{"name": "weather", "parameters": {"city": "a"}}; "#,
                r#"{"name": "search", "parameters": {}}"#
            ),
            true,
        ),
        (
            r#"<|python_tag|>{"name": "weather", "parameters": {"city": "a"}}"#,
            true,
        ),
        (r#"{"type": "function"}"#, false),
        (r#" {"name": "weather", "parameters": {}}"#, false),
        (r#"So: {"type": "function"}"#, true),
    ] {
        assert_eq!(bytes.allows(&tag, output), allowed, "{output}");
    }
}

#[test]
fn reasoning_comes_first() {
    let marks = ["<think>", "</think>", "<tool_call>", "</tool_call>"];
    let think = Some(ReasoningFormat::Think);
    let call = call(ToolFormat::Hermes, "weather", RIGHT);
    for bytes in [Bytes::new(&marks), Bytes::new(&[])] {
        for begun in [true, false] {
            let tag = ToolFormat::Hermes
                .allowing(&tools(), true, think, begun)
                .unwrap();
            let open = if begun { "" } else { "<think>" };
            let output = format!("{open}Hm {{\n</think>\n\nLet me see. {call}");
            assert!(bytes.allows(&tag, &output), "{begun}: {output}");
            let wrong = output.replace("\"Rome\"", "5");
            assert!(!bytes.allows(&tag, &wrong), "{begun}: {wrong}");
            assert_eq!(bytes.allows(&tag, "Hello."), !begun);
        }
    }
}
