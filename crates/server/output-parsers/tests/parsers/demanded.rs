//! Outputs that match a tag for required calls are parsed as these calls.

use penstock_output_parsers::{ReasoningFormat, ToolFormat};
use serde_json::Value;

use crate::common::{check, rules, tools};

/// An output that matches a structural tag: each tool is called once.
fn sample(format: &Value) -> String {
    let text = |name: &str| format[name].as_str().unwrap().to_owned();
    let list = |name: &str| format[name].as_array().unwrap().iter();
    match format["type"].as_str().unwrap() {
        "structural_tag" => sample(&format["format"]),
        "sequence" => list("elements").map(sample).collect(),
        "const_string" => text("value"),
        "regex" => "0".to_owned(),
        "any_text" => "Hm.".to_owned(),
        "json_schema" => {
            assert_eq!(format["json_schema"]["type"], "object");
            "{\"city\": \"a\"}".to_owned()
        }
        "tag" => text("begin") + &sample(&format["content"]) + &text("end"),
        "tags_with_separator" => {
            assert_eq!(format["at_least_one"], true);
            let tags: Vec<_> = list("tags").map(sample).collect();
            tags.join(format["separator"].as_str().unwrap())
        }
        other => panic!("{other}"),
    }
}

#[test]
fn what_is_demanded_is_read() {
    for name in ToolFormat::names() {
        let format = ToolFormat::by_name(name).unwrap().constrained();
        let tag = format.demanding(&tools()[..2], true, None);
        let mut rules = rules(Some(name), None);
        rules.tools = Some((format, tools()));
        let arguments = "({\"city\": \"a\"})";
        let id = |tool: &str| match format {
            ToolFormat::KimiK2 => format!("functions.{tool}:0"),
            _ => String::new(),
        };
        let call = |tool: &str| format!("{tool}#{}{arguments}", id(tool));
        let calls = [call("get_weather"), call("search")];
        check(
            &rules,
            "",
            &sample(&tag),
            &calls.each_ref().map(String::as_str),
        );
    }
}

#[test]
fn open_reasoning_ends_first() {
    let think = Some(ReasoningFormat::Think);
    let tag = ToolFormat::Hermes.demanding(&tools()[..1], false, think);
    check(
        &rules(Some("hermes"), Some("qwen3")),
        "<think>\n",
        &sample(&tag),
        &["r:Hm.", "get_weather#({\"city\": \"a\"})"],
    );
}
