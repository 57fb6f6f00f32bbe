//! Any split of a text gives the same events, and hostile text is parsed to its end.

use penstock_output_parsers::{OutputEvent, ReasoningFormat, ToolFormat};
use proptest::prelude::*;

use crate::common::{read, rules};

/// Fragments of outputs, valid and invalid.
const FRAGMENTS: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}",
    "{\"name\": \"f\", \"parameters\": {}}",
    "{\"arguments\": [1], \"name\": \"run\"}",
    "{\"name\"",
    ": \"f\"",
    "\"arguments\": {\"x\": \"\\\"}\"}",
    "<function=f>",
    "<parameter=city>",
    "<parameter=days>",
    "</parameter>",
    "</function>",
    "f\n<arg_key>",
    "note</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<|python_tag|>",
    "[f(city='x', days=1)",
    "[f(",
    ", run()]",
    "<|python_start|>",
    "<|python_end|>",
    "[TOOL_CALLS]",
    "[",
    "]",
    "f[ARGS]",
    "f[CALL_ID]i[ARGS]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "function<｜tool▁sep｜>f\n```json\n",
    "f<｜tool▁sep｜>",
    "\n```",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "<|tool_call_begin|>",
    "functions.f:0<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|start|>assistant",
    "<|channel|>analysis",
    "<|channel|>commentary to=functions.f",
    "<|channel|>final",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "Here is my thought process:",
    "Here's my response:",
    "{}",
    "{\"a\": 1}",
    "\"",
    "\\",
    "}",
    ", ",
    "; ",
    "\n",
    "  ",
    "\u{3000}",
    "é𝄞",
    "42",
    "null",
    "text",
    "<",
    "\0",
];

fn text() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        8 => prop::sample::select(FRAGMENTS).prop_map(str::to_owned),
        1 => "\\PC{0,8}",
        1 => any::<Vec<u8>>().prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        1 => (1..600usize).prop_map(|n| " ".repeat(n)),
        1 => (1..600usize).prop_map(|n| "a".repeat(n)),
    ];
    prop::collection::vec(fragment, 0..16).prop_map(|parts| parts.concat())
}

/// Splits the text at these positions.
fn pieces<'a>(text: &'a str, cuts: &[prop::sample::Index]) -> Vec<&'a str> {
    let mut at: Vec<usize> = cuts
        .iter()
        .map(|cut| cut.index(text.len() + 1))
        .filter(|&at| text.is_char_boundary(at))
        .collect();
    at.extend([0, text.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

fn names() -> impl Strategy<Value = (Option<&'static str>, Option<&'static str>)> {
    let tools: Vec<_> = ToolFormat::names().map(Some).chain([None]).collect();
    let reasoning: Vec<_> = ReasoningFormat::names().map(Some).chain([None]).collect();
    (
        prop::sample::select(tools),
        prop_oneof![Just(None), prop::sample::select(reasoning)],
    )
}

fn content(events: &[OutputEvent]) -> String {
    let text = |event: &OutputEvent| match event {
        OutputEvent::Content(text) => text.clone(),
        _ => String::new(),
    };
    events.iter().map(text).collect()
}

/// Regression found by the property below: released white space was emitted after the reasoning.
#[test]
fn much_white_space_before_a_mark_keeps_its_place() {
    let rules = rules(Some("hermes"), Some("qwen3"));
    let text = " ".repeat(600) + "<think><tool_call>";
    let whole = read(&rules, "", [text.as_str()]);
    assert_eq!(whole, read(&rules, "", text.split_inclusive(' ')));
    assert_eq!(content(&whole), text);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn a_split_changes_nothing(
        names in names(),
        text in text(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..24),
        prompt in prop::sample::select(vec!["", "<think>\n", "</think>\n\n"]),
    ) {
        let rules = rules(names.0, names.1);
        let whole = read(&rules, prompt, [text.as_str()]);
        let cut = read(&rules, prompt, pieces(&text, &cuts));
        prop_assert_eq!(&cut, &whole);
        let characters = text.char_indices().map(|(at, c)| &text[at..at + c.len_utf8()]);
        prop_assert_eq!(&read(&rules, prompt, characters), &whole);
    }

    /// Without calls the content is the text, except the marks of sections and channels.
    #[test]
    fn text_without_calls_is_content(
        format in prop::sample::select(
            vec!["hermes", "qwen3_coder", "llama3_json", "mistral", "glm45"]
        ),
        text in text(),
    ) {
        let events = read(&rules(Some(format), None), "", [text.as_str()]);
        if events.iter().all(|event| matches!(event, OutputEvent::Content(_))) {
            let blank = |c: char| c.is_whitespace();
            prop_assert_eq!(content(&events).replace(blank, ""), text.replace(blank, ""));
        }
    }
}
