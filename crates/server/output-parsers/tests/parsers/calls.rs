//! Well-formed calls of every family, in the formats of their chat templates and model cards.

use crate::common::check_calls;

#[test]
fn hermes() {
    check_calls(
        "hermes",
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n\
         </tool_call>",
        &[r#"get_weather#({"city": "Paris"})"#],
    );
    check_calls(
        "hermes",
        "I look it up.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}\
         \n</tool_call>\n<tool_call>\n{\"name\": \"run\", \"arguments\": {}}\n</tool_call>\nDone.",
        &[
            "c:I look it up.",
            r#"f#({"a": [1, {"b": "}"}]})"#,
            "run#({})",
            "c:Done.",
        ],
    );
    // Members in a different order, an end mark inside a string, no arguments, arguments as text.
    check_calls(
        "hermes",
        r#"<tool_call>{"arguments": {"code": "</tool_call>"}, "name": "run"}</tool_call>
           <tool_call>{"id": 3, "name": "f"}</tool_call>
           <tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>
           <tool_call>{"name": "f", "arguments": null}"#,
        &[
            r#"run#({"code": "</tool_call>"})"#,
            "f#({})",
            r#"f#({"a": 1})"#,
            "f#({})",
        ],
    );
}

#[test]
fn qwen3_coder() {
    check_calls(
        "qwen3_coder",
        "Now:\n<tool_call>\n<function=get_weather>\n<parameter=city>\nNew \"York\"\n</parameter>\n\
         <parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n\
         <parameter=tags>\n[\"a\", \"b\"]\n</parameter>\n</function>\n</tool_call>\n\
         <tool_call>\n<function=run>\n</function>\n</tool_call>",
        &[
            "c:Now:",
            "get_weather#({\"city\": \"New \\\"York\\\"\", \"days\": 3, \"exact\": true, \
             \"tags\": [\"a\",\"b\"]})",
            "run#({})",
        ],
    );
    // Several lines with tags inside, a number for a text, no outer mark, unknown parameters.
    check_calls(
        "qwen3_coder",
        "<function=run>\n<parameter=code>\n\nif a < b:\n    print('</p>')\n\n</parameter>\n\
         <parameter=city>\n75001\n</parameter>\n<parameter=note>\nnull\n</parameter>\n\
         <parameter=x>\n{\"k\": 1}\n</parameter>\n<parameter=y>\nplain\n</parameter>\n</function>",
        &[
            "run#({\"code\": \"\\nif a < b:\\n    print('</p>')\\n\", \"city\": \"75001\", \
             \"note\": null, \"x\": {\"k\":1}, \"y\": \"plain\"})",
        ],
    );
}

#[test]
fn llama() {
    check_calls(
        "llama3_json",
        r#"{"name": "get_weather", "parameters": {"city": "Paris"}}"#,
        &[r#"get_weather#({"city": "Paris"})"#],
    );
    check_calls(
        "llama3_json",
        "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": \"1\"}}; \
         {\"name\": \"run\", \"parameters\": {}}",
        &[r#"f#({"a": "1"})"#, "run#({})"],
    );
    check_calls(
        "llama3_json",
        r#"Let me see. <|python_tag|>{"name": "f", "arguments": {}}"#,
        &["c:Let me see.", "f#({})"],
    );
}

#[test]
fn pythonic() {
    check_calls(
        "llama4_pythonic",
        "[get_weather(city=\"San Francisco\", days=3), run(code='print(\"]\")', tags=['a', None])]",
        &[
            r#"get_weather#({"city":"San Francisco","days":3})"#,
            r#"run#({"code":"print(\"]\")","tags":["a",null]})"#,
        ],
    );
    check_calls(
        "llama4_pythonic",
        "<|python_start|>[f(), search(exact=True)]<|python_end|>",
        &["f#({})", r#"search#({"exact":true})"#],
    );
}

#[test]
fn mistral() {
    check_calls(
        "mistral",
        "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, \
         {\"name\": \"f\", \"arguments\": {}, \"id\": \"abc123xyz\"}]",
        &[r#"get_weather#({"city": "Paris"})"#, "f#({})"],
    );
    check_calls(
        "mistral",
        "Wait.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]f[CALL_ID]abc123xyz\
         [ARGS]{\"a\": 1}",
        &[
            "c:Wait.",
            r#"get_weather#({"city": "Paris"})"#,
            r#"f#abc123xyz({"a": 1})"#,
        ],
    );
    check_calls(
        "mistral",
        r#"[TOOL_CALLS]get_weather{"city": "Paris"}"#,
        &[r#"get_weather#({"city": "Paris"})"#],
    );
}

#[test]
fn deepseek() {
    check_calls(
        "deepseek_v3",
        "I see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n\
         {\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n\
         ```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &["c:I see.", r#"get_weather#({"city": "Paris"})"#, "f#({})"],
    );
    check_calls(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}\
         <｜tool▁call▁end｜><｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &[r#"get_weather#({"city": "Paris"})"#, "f#({})"],
    );
}

#[test]
fn kimi() {
    check_calls(
        "kimi_k2",
        "Sure.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
         <|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_call_begin|>\
         functions.f:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        &[
            "c:Sure.",
            r#"get_weather#functions.get_weather:0({"city": "Paris"})"#,
            "f#functions.f:1({})",
        ],
    );
}

#[test]
fn glm() {
    check_calls(
        "glm45",
        "Let me.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Beijing</arg_value>\n\
         <arg_key>days</arg_key>\n<arg_value>7</arg_value>\n</tool_call>\n<tool_call>f</tool_call>",
        &[
            "c:Let me.",
            r#"get_weather#({"city": "Beijing", "days": 7})"#,
            "f#({})",
        ],
    );
}

#[test]
fn harmony() {
    check_calls(
        "openai",
        "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>\
         commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary \
         to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
        &[
            "r:Need the weather.",
            "c:I look.",
            r#"get_weather#({"city": "Paris"})"#,
        ],
    );
    // The recipient in the role, as in the newer template; an answer.
    check_calls(
        "openai",
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|><|start|>\
         assistant<|channel|>final<|message|>It rains.<|return|>",
        &["f#({})", "c:It rains."],
    );
    // Cut off inside a header, which is no text of a message.
    for (message, events) in [
        ("", &[][..]),
        ("<|channel|>analysis<|message|>So.<|end|>", &["r:So."]),
    ] {
        for header in ["<|start|>assistant", "<|channel|>final"] {
            check_calls("openai", &format!("{message}{header}"), events);
        }
    }
}

#[test]
fn only_so_many_calls() {
    let mut rules = crate::common::rules(Some("hermes"), None);
    rules.max_calls = Some(1);
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    crate::common::check(&rules, "", &format!("{call}{call}x"), &["f#({})", "c:x"]);
}
