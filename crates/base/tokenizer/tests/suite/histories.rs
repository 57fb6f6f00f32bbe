//! Conversations that a template refuses in their original form, and trials of templates at
//! start-up.

use penstock_tokenizer::{ChatTemplate, Conversation, SpecialTokens, TextError, TextModel};
use serde_json::{Map, Value, json};

fn with_template(source: &str) -> TextModel {
    let model = TextModel::of_words(9).unwrap();
    model.with_template(source).unwrap()
}

fn prompt_of(source: &str, messages: &Value, tools: Option<&Value>) -> String {
    let chat = Conversation {
        tools,
        ..Conversation::of(messages)
    };
    with_template(source).render(&chat, true).unwrap().written()
}

/// Iterates over arguments like Qwen3-Coder's and GLM's.
const ITERATES: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name \
    }}({% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}){% endfor %}{% \
    endfor %}";

#[test]
fn arguments_that_are_no_object_end_no_conversation() {
    for (arguments, printed) in [
        (json!(null), "f()"),
        (json!(""), "f()"),
        (json!(" null "), "f()"),
        (json!({"a": 1}), "f(a=1)"),
        (json!("{\"a\": [1]}"), "f(a=[1])"),
        (json!("7"), "f(arguments=7)"),
        (json!(7.5), "f(arguments=7.5)"),
        (json!([1]), "f(arguments=[1])"),
        (json!("{\"text\": \"cut"), "f(arguments={\"text\": \"cut)"),
        (json!("true"), "f(arguments=True)"),
    ] {
        let call = json!({"function": {"name": "f", "arguments": arguments}});
        let messages = json!([{"role": "assistant", "tool_calls": [call]}]);
        assert_eq!(prompt_of(ITERATES, &messages, None), printed, "{arguments}");
    }
    let messages = json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]);
    assert_eq!(prompt_of(ITERATES, &messages, None), "f()");
}

#[test]
fn reasoning_has_the_name_that_the_template_reads() {
    for name in ["thinking", "reasoning", "reasoning_content"] {
        for sent in ["thinking", "reasoning", "reasoning_content"] {
            let mut message = json!({"role": "assistant", "content": "x"});
            message[sent] = json!("why");
            let source = format!("{{{{ messages[0].{name} }}}}");
            let messages = json!([message]);
            assert_eq!(
                prompt_of(&source, &messages, None),
                "why",
                "{sent} as {name}"
            );
        }
    }
}

/// Like Gemma 2's.
const ALTERNATES: &str = "{% if messages[0].role == 'system' %}{{ raise_exception('System role \
    not supported') }}{% endif %}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 \
    % 2 == 0) %}{{ raise_exception('Conversation roles must alternate') }}{% endif %}[{{ m.role \
    }}] {{ m.content }}\n{% endfor %}";
/// Like Qwen 3.5's.
const SYSTEM_FIRST: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first \
    %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}[{{ m.role }}] \
    {{ m.content }}\n{% endfor %}";
/// Like gpt-oss's.
const DESCRIBES: &str = "{% for t in tools %}{{ '// ' + t.function.description }}\n{% endfor %}";
/// Like Mistral's.
const SHORT_IDS: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | \
    length != 9 %}{{ raise_exception('ids of length 9') }}{% endif %}{{ c.id }}{% endfor %}{% if \
    m.role == 'tool' %}={{ m.tool_call_id }}{% endif %}{% endfor %}";

#[test]
fn what_a_template_refuses_is_written_as_the_protocol_means_it() {
    let say = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = json!([
        say("system", "S"),
        say("user", "a"),
        say("user", "b"),
        say("system", "later"),
        say("assistant", "c"),
        say("user", "d"),
    ]);
    assert_eq!(
        prompt_of(ALTERNATES, &messages, None),
        "[user] S\n\na\n\nb\n\nlater\n[assistant] c\n[user] d\n"
    );
    assert_eq!(
        prompt_of(SYSTEM_FIRST, &messages, None),
        "[system] S\n[user] a\n\nb\n\nlater\n[assistant] c\n[user] d\n"
    );
    let hello = json!([say("assistant", "Hello!"), say("user", "hi")]);
    let text = prompt_of(ALTERNATES, &hello, None);
    assert_eq!(text, "[user] \n[assistant] Hello!\n[user] hi\n");
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let one = json!([say("user", "a")]);
    assert_eq!(prompt_of(DESCRIBES, &one, Some(&tools)), "// \n");
    let call = json!({"id": "call_123", "function": {"name": "f", "arguments": "{}"}});
    let round = json!([
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_123", "content": "1"},
    ]);
    let text = prompt_of(SHORT_IDS, &round, None);
    let (id, answered) = text.split_once('=').unwrap();
    assert!(id.len() == 9 && id == answered, "{text}");
}

#[test]
fn what_no_form_helps_has_the_templates_own_words() {
    let model = with_template("{{ raise_exception('never') }}");
    let messages = json!([{"role": "user", "content": "hi"}]);
    let error = model
        .render(&Conversation::of(&messages), true)
        .unwrap_err();
    assert_eq!(error.to_string(), "never");
}

#[test]
fn a_template_is_tried_out() {
    let refused = |source: &str| {
        let template = ChatTemplate::parse(source, SpecialTokens::new()).unwrap();
        let refused = template.try_out()?;
        Ok::<_, TextError>(
            refused
                .into_iter()
                .map(|(what, _)| what)
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(refused("{{ messages[-1].content }}").unwrap(), [""; 0]);
    assert_eq!(refused(ALTERNATES).unwrap(), ["a system turn"]);
    let tools = "{% if tools %}{{ tools[0].missing.member }}{% endif %}";
    assert_eq!(refused(tools).unwrap(), ["a round of tools"]);
    let error = refused("{% if messages | length < 2 %}{{ nothing.more }}{% endif %}");
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("'nothing' is undefined")
    );
}

/// Gemma 2's template supports neither tools nor a system message.
#[test]
fn tools_are_listed_where_the_template_has_room() {
    let messages = json!([{"role": "user", "content": "a"}]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let text = prompt_of(ALTERNATES, &messages, Some(&tools));
    assert!(text.starts_with("[user] You can call functions"), "{text}");
    assert!(
        text.contains("{\"name\": \"f\"}") && text.ends_with("\n\na\n"),
        "{text}"
    );
    let messages = json!([{"role": "system", "content": "S"}, {"role": "user", "content": "a"}]);
    let text = prompt_of(ALTERNATES, &messages, Some(&tools));
    assert!(text.ends_with("\n\nS\n\na\n"), "{text}");
}

/// For example, SmolLM2's template does not render tools.
#[test]
fn a_template_without_tools_gets_them_as_text() {
    let template = ChatTemplate::parse(
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}",
        SpecialTokens::new(),
    );
    let call = |name: &str| {
        json!({"id": "1", "type": "function",
               "function": {"name": name, "arguments": "{\"a\": \"é\"}"}})
    };
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "Wait.", "tool_calls": [call("f"), call("g")]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "user", "content": "And?"},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let template = template.unwrap();
    let text = |tools| {
        template
            .render(&messages, false, tools, &Map::new())
            .unwrap()
    };
    let history = "[assistant] Wait.\n\
        <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}\n</tool_call>\n\
        <tool_call>\n{\"name\": \"g\", \"arguments\": {\"a\": \"é\"}}\n</tool_call>\n\
        [user] <tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\n\
        [user] And?\n";
    assert_eq!(text(None), format!("[system] Be brief.\n{history}"));
    let with_tools = text(Some(&tools));
    assert!(with_tools.starts_with("[system] Be brief.\n\nYou can call functions"));
    let listed = "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>";
    assert!(with_tools.contains(listed), "{with_tools}");
    assert!(with_tools.ends_with(history), "{with_tools}");
}
