use std::sync::Arc;

use penstock_output_parsers::{
    OutputEvent, OutputParser, ParserRules, ReasoningFormat, ToolFormat, ToolSchema,
};
use serde_json::json;

/// `get_weather`, `search`, `run` and `f` with parameters of several types.
pub(crate) fn tools() -> Arc<[ToolSchema]> {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"},
        "code": {"type": "string"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "note": {"type": ["string", "null"]},
    }});
    let tool = |name: &str| ToolSchema {
        name: name.to_owned(),
        parameters: parameters.as_object().cloned(),
        strict: name == "get_weather",
    };
    ["get_weather", "search", "run", "f"].map(tool).into()
}

pub(crate) fn rules(tools_as: Option<&str>, reasoning: Option<&str>) -> ParserRules {
    ParserRules {
        tools: tools_as.map(|name| (ToolFormat::by_name(name).unwrap(), tools())),
        reasoning: reasoning.map(|name| ReasoningFormat::by_name(name).unwrap()),
        max_calls: None,
    }
}

/// Parses a text in these chunks and returns its merged events.
pub(crate) fn read<'a>(
    rules: &ParserRules,
    prompt: &str,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<OutputEvent> {
    let mut parser = OutputParser::new(rules, prompt);
    let mut events = Vec::new();
    let all = |events: &mut Vec<_>, new: Vec<OutputEvent>| {
        new.into_iter()
            .for_each(|event| OutputEvent::append(events, event));
    };
    for piece in pieces {
        let new = parser.push(piece);
        all(&mut events, new);
    }
    all(&mut events, parser.finish());
    assert_eq!(
        parser.calls(),
        events
            .iter()
            .filter(|event| matches!(event, OutputEvent::ToolCallStart { .. }))
            .count()
    );
    events
}

/// Short form of events: `r:` reasoning, `c:` content, `name#id(arguments)`.
pub(crate) fn short(events: &[OutputEvent]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for event in events {
        match event {
            OutputEvent::Reasoning(text) => lines.push(format!("r:{text}")),
            OutputEvent::Content(text) => lines.push(format!("c:{text}")),
            OutputEvent::ToolCallStart { id, name, .. } => lines.push(format!("{name}#{id}")),
            OutputEvent::ToolCallArguments { text, .. } => {
                let call = lines.last_mut().unwrap();
                call.push_str(&format!("({text})"));
            }
        }
    }
    lines
}

/// Parses `text` whole and character by character: both must give `expected`.
pub(crate) fn check(rules: &ParserRules, prompt: &str, text: &str, expected: &[&str]) {
    let whole = read(rules, prompt, [text]);
    assert_eq!(short(&whole), expected, "{text}");
    let characters = text
        .char_indices()
        .map(|(at, c)| &text[at..at + c.len_utf8()]);
    let cut = read(rules, prompt, characters);
    assert_eq!(cut, whole, "by characters: {text}");
}

pub(crate) fn check_calls(format: &str, text: &str, expected: &[&str]) {
    check(&rules(Some(format), None), "", text, expected);
}
