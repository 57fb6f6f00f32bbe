//! Text that only looks like a call, and malformed calls: no text is lost.

use crate::common::{check_calls, read, rules, short};

/// These outputs are content, unchanged.
#[test]
fn what_only_looks_like_a_call() {
    for (format, text) in [
        ("hermes", "Use <tool_call> tags."),
        ("hermes", "a <tool_call>{\"city\": 1}</tool_call> b"),
        ("hermes", "<tool_call>{\"name\": 3}</tool_call>"),
        ("hermes", "<tool_call>{\"name\": \"\"}"),
        ("hermes", "<tool_call>\n{\"na"),
        ("hermes", "<tool"),
        ("hermes", "  two spaces\n\n"),
        ("qwen3_coder", "<tool_call>\n{\"name\": \"f\"}"),
        ("qwen3_coder", "<function=two words>x"),
        ("qwen3_coder", "<function=f"),
        ("llama3_json", "{\"city\": \"Paris\", \"days\": 3}"),
        ("llama3_json", "{\"name\": \"other\", \"parameters\": {}}"),
        ("llama3_json", "{ curly"),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("llama4_pythonic", "[1, 2]"),
        ("llama4_pythonic", "[other(a=1)]"),
        ("llama4_pythonic", "[f(a=b)] c"),
        ("llama4_pythonic", "[f(a='x"),
        ("llama4_pythonic", "[link](http://x)"),
        ("mistral", "[TOOL_CALLS] [1]"),
        ("mistral", "[TOOL_CALLS]two words"),
        ("mistral", "[TOOL_CALLS][{\"a\": 1}]"),
        ("mistral", "[TOOL_CALLS]f[CALL_ID]"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>function"),
        (
            "deepseek_v31",
            "<｜tool▁call▁begin｜>two words<｜tool▁sep｜>{}",
        ),
        ("glm45", "<tool_call>two words</tool_call>"),
    ] {
        check_calls(format, text, &[&format!("c:{text}")]);
    }
}

/// Arguments are unchanged.
#[test]
fn calls_with_broken_arguments() {
    check_calls(
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call> x",
        &["f#({\"a\": 1)", "c:x"],
    );
    check_calls(
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"1",
        &["f#({\"a\": \"1)"],
    );
    check_calls(
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>",
        &["f#({\"a\": 1})"],
    );
    check_calls(
        "deepseek_v31",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>a = 1<｜tool▁call▁end｜>b",
        &["f#(a = 1)", "c:b"],
    );
    check_calls(
        "kimi_k2",
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\": <b>}<|tool_call_end|>",
        &["f#functions.f:0({\"a\": <b>})"],
    );
    check_calls(
        "qwen3_coder",
        "<function=f>\n<parameter=city>\nPar",
        &["f#({\"city\": \"Par)"],
    );
    check_calls(
        "openai",
        "<|channel|>commentary to=functions.f<|message|>x=1<|call|>",
        &["f#(x=1)"],
    );
}

/// The text held back until it is known to be a call is bounded.
#[test]
fn endless_beginnings_are_given_back() {
    for (format, start) in [
        ("hermes", "<tool_call>{\"x\": \""),
        ("hermes", "<tool_call>{\""),
        ("llama3_json", "{\"a\": ["),
        ("llama4_pythonic", "[f(a='"),
        ("llama4_pythonic", "["),
        ("mistral", "[TOOL_CALLS]"),
        ("deepseek_v3", "<｜tool▁call▁begin｜>"),
        ("qwen3_coder", "<function="),
        ("glm45", "<tool_call>"),
        ("openai", "<|channel|>"),
    ] {
        let text = format!("{start}{}", "1".repeat(3 << 20));
        let events = read(&rules(Some(format), None), "", [text.as_str()]);
        assert!(short(&events) == [format!("c:{text}")], "{format} {start}");
    }
}

/// Time is linear in the text, for any content.
#[test]
fn many_marks_cost_no_more_than_text() {
    for (format, mark) in [
        ("hermes", "<tool_call>{\"a\":[\""),
        ("hermes", "<tool_call>\n"),
        ("mistral", "[TOOL_CALLS]["),
        ("glm45", "<tool_call>f<arg_key>"),
        ("qwen3_coder", "<function=f><parameter=a>"),
        ("deepseek_v31", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>"),
        ("openai", "<|channel|>analysis<|message|>"),
        ("llama3_json", "<|python_tag|>{"),
    ] {
        let text = mark.repeat(100_000);
        read(&rules(Some(format), None), "", [text.as_str()]);
    }
}
