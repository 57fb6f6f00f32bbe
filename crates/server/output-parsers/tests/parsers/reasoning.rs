use penstock_output_parsers::{ReasoningFormat, ToolFormat};

use crate::common::{check, rules};

fn check_reasoning(format: &str, prompt: &str, text: &str, expected: &[&str]) {
    check(&rules(None, Some(format)), prompt, text, expected);
}

#[test]
fn think() {
    let text = "<think>\nHm. Well.\n</think>\n\nParis.";
    check_reasoning("qwen3", "", text, &["r:Hm. Well.", "c:Paris."]);
    check_reasoning("deepseek_r1", "", text, &["r:Hm. Well.", "c:Paris."]);
    // The template has opened or closed the reasoning.
    check_reasoning(
        "qwen3",
        "<think>\n",
        "Hm.</think>Paris.",
        &["r:Hm.", "c:Paris."],
    );
    check_reasoning("qwen3", "<think>\n\n</think>\n\n", "Paris.", &["c:Paris."]);
    check_reasoning("qwen3", "", "Paris.</think>", &["c:Paris.</think>"]);
    check_reasoning(
        "deepseek_r1",
        "",
        "Hm.</think>Paris.",
        &["r:Hm.", "c:Paris."],
    );
    // Cut off; no reasoning; white space only; a mark later in the text.
    check_reasoning("qwen3", "", "<think>Hm. <", &["r:Hm. <"]);
    check_reasoning("qwen3", "", "<think>\n\n</think>\n\nParis.", &["c:Paris."]);
    check_reasoning("qwen3", "", "\n  ", &["c:\n  "]);
    check_reasoning("qwen3", "", "a <think>b</think>", &["c:a <think>b</think>"]);
    check_reasoning("qwen3", "", "<thi", &["c:<thi"]);
}

#[test]
fn other_marks() {
    check_reasoning(
        "granite",
        "",
        "Here's my thought process: Hm.\nHere is my response: Paris.",
        &["r:Hm.", "c:Paris."],
    );
    check_reasoning(
        "mistral",
        "",
        "[THINK]Hm.[/THINK]Paris.",
        &["r:Hm.", "c:Paris."],
    );
    check_reasoning(
        "seed_oss",
        "",
        "<seed:think>Hm.</seed:think>Paris.",
        &["r:Hm.", "c:Paris."],
    );
    check_reasoning(
        "openai_gptoss",
        "",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Paris.",
        &["r:Hm.", "c:Paris."],
    );
}

#[test]
fn calls_follow_reasoning() {
    let rules = rules(Some("hermes"), Some("qwen3"));
    check(
        &rules,
        "<think>\n",
        "I could <tool_call>.\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n\
         </tool_call>",
        &["r:I could <tool_call>.", "f#({})"],
    );
}

/// Only the lines of templates that distinguish the families.
#[test]
fn formats_are_known_by_the_template() {
    let tools = |text: &str| ToolFormat::of_template(text);
    assert_eq!(tools("<tool_call></tool_call>"), Some(ToolFormat::Hermes));
    assert_eq!(
        tools("<tool_call>\n<function=example_function_name>"),
        Some(ToolFormat::Qwen3Coder)
    );
    assert_eq!(tools("<tool_call>{name}<arg_key>"), Some(ToolFormat::Glm45));
    assert_eq!(
        tools("<｜tool▁sep｜>' + name + '\\n```json"),
        Some(ToolFormat::DeepseekV3)
    );
    assert_eq!(tools("```json"), None);
    assert_eq!(
        tools("name + '<｜tool▁sep｜>'"),
        Some(ToolFormat::DeepseekV31)
    );
    assert_eq!(tools("[TOOL_CALLS]"), Some(ToolFormat::Mistral));
    assert_eq!(tools("<|python_tag|>"), Some(ToolFormat::Llama3Json));
    assert_eq!(tools("<|channel|>"), Some(ToolFormat::Harmony));
    assert_eq!(tools("<|im_start|>"), None);
    let reasoning = |text: &str| ReasoningFormat::of_template(text);
    assert_eq!(reasoning("split('</think>')"), Some(ReasoningFormat::Think));
    assert_eq!(reasoning("<|im_start|>"), None);
    for name in ToolFormat::names() {
        assert!(!ToolFormat::by_name(name).unwrap().marks().is_empty());
    }
    for name in ReasoningFormat::names() {
        assert!(!ReasoningFormat::by_name(name).unwrap().marks().is_empty());
    }
}
