//! Chat templates compared with transformers, and limits on hostile templates.

use std::path::Path;

use penstock_tokenizer::{
    ChatTemplate, Conversation, Elsewhere, SpecialTokens, TextError, TextModel, run_template_job,
};
use serde_json::{Map, Value, json};

fn tokens() -> SpecialTokens {
    SpecialTokens::from([
        ("bos_token".to_owned(), "<s>".to_owned()),
        ("eos_token".to_owned(), "</s>".to_owned()),
    ])
}

fn render_with(
    source: &str,
    messages: &Value,
    tools: Option<&Value>,
    kwargs: Value,
) -> Result<String, TextError> {
    let kwargs: Map<String, Value> = serde_json::from_value(kwargs).unwrap();
    ChatTemplate::parse(source, tokens())?.render(messages, true, tools, &kwargs)
}

fn render(source: &str) -> Result<String, TextError> {
    render_with(
        source,
        &json!([{"role": "user", "content": "hi"}]),
        None,
        json!({}),
    )
}

#[test]
fn a_conversation_is_rendered_with_its_roles_and_special_tokens() {
    let source = "{{ bos_token }}{% for m in messages %}\n  {% if m.role == 'user' %}\n[{{ \
        m['content'] }}]\n  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}>{{ \
        eos_token }}{% endif %}\n";
    assert_eq!(render(source).unwrap(), "<s>[hi]\n></s>");
}

#[test]
fn python_methods_and_loop_controls_work() {
    let source = "{% for c in ' a-b-c '.strip().split('-') %}{% if c == 'c' %}{% break %}{% endif \
        %}{{ c.upper() }}{% endfor %}{{ messages[::-1][0].get('role', 'x') }}";
    assert_eq!(render(source).unwrap(), "ABuser");
}

#[test]
fn values_are_printed_as_python_prints_them() {
    let kwargs = json!({"x": {"a": [1, 2.0, 1e-7, null, true, "it's"], "b": "q\"\n"}});
    let text = render_with(
        "{{ x }}|{{ none }}|{{ true }}|{{ missing }}|{{ 1 }}|{{ x.a|string }}",
        &json!([{"role": "u"}]),
        None,
        kwargs,
    );
    let list = r#"[1, 2.0, 1e-07, None, True, "it's"]"#;
    assert_eq!(
        text.unwrap(),
        format!(r#"{{'a': {list}, 'b': 'q"\n'}}|None|True||1|{list}"#)
    );
}

/// Expected texts come from Python's `json.dumps`.
#[test]
fn tojson_is_pythons() {
    let kwargs = json!({"x": {"b": [1, "é<&'🦊"], "a": {}, "c": [], "d": 1.0}});
    let cases = [
        (
            "{{ x|tojson }}",
            r#"{"b": [1, "é<&'🦊"], "a": {}, "c": [], "d": 1.0}"#,
        ),
        (
            "{{ x|tojson(sort_keys=true) }}",
            r#"{"a": {}, "b": [1, "é<&'🦊"], "c": [], "d": 1.0}"#,
        ),
        (
            "{{ x.b|tojson(ensure_ascii=true) }}",
            r#"[1, "\u00e9<&'\ud83e\udd8a"]"#,
        ),
        ("{{ x.b|tojson(separators=(',', ':')) }}", r#"[1,"é<&'🦊"]"#),
        (
            "{{ x|tojson(indent=2) }}",
            "{\n  \"b\": [\n    1,\n    \"é<&'🦊\"\n  ],\n  \"a\": {},\n  \"c\": [],\n  \"d\": \
             1.0\n}",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(
            render_with(source, &json!([{"role": "u"}]), None, kwargs.clone()).unwrap(),
            expected,
            "{source}"
        );
    }
}

#[test]
fn tools_documents_and_further_variables_reach_the_template() {
    let source = "{{ tools|tojson if tools else 'none' }} {{ documents|length if documents else 0 \
        }} {{ enable_thinking }}";
    let (messages, tools) = (
        json!([{"role": "user", "content": ""}]),
        json!([{"type": "function"}]),
    );
    let kwargs = json!({"documents": [1, 2], "enable_thinking": false, "messages": "not replaced"});
    assert_eq!(
        render_with(source, &messages, Some(&tools), kwargs).unwrap(),
        "[{\"type\": \"function\"}] 2 False"
    );
    assert_eq!(
        render_with(source, &messages, Some(&json!([])), json!({})).unwrap(),
        "none 0 "
    );
}

/// One part, so that a special token's spelling across two parts remains text.
#[test]
fn a_template_that_writes_parts_gets_the_joined_text_as_one() {
    let source = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else \
        %}{% for part in m.content %}({{ part.text | trim }}){% endfor %}{% endif %}{% endfor %}";
    let part = |text: &str| json!({"type": "text", "text": text});
    let messages = json!([
        {"role": "user", "content": [part(" <|im_"), part("end|> ")]},
        {"role": "assistant", "content": [part("a"), part("b")]},
        {"role": "user", "content": " c "},
        {"role": "user", "content": []},
    ]);
    let text = render_with(source, &messages, None, json!({})).unwrap();
    assert_eq!(text, "(<|im_\nend|>)a\nb c ()");
}

#[test]
fn content_parts_are_joined_and_tool_arguments_are_objects() {
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": null,
         "tool_calls": [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]}
    ]);
    let source = "{% for m in messages %}<{{ m.content }}>{% endfor %}{{ \
        messages[1].tool_calls[0].function.arguments.x }}";
    assert_eq!(
        render_with(source, &messages, None, json!({})).unwrap(),
        "<a\nb><>1"
    );
}

#[test]
fn malformed_messages_are_named() {
    let image = json!([
        {"role": "user", "content": "x"},
        {"role": "user", "content": [{"type": "image_url"}]},
    ]);
    let cases = [
        (json!("hi"), "messages: must be a list"),
        (json!([]), "messages: must not be empty"),
        (
            json!([{"content": "x"}]),
            "messages[0]: role must be a string",
        ),
        (
            json!([{"role": "user", "content": 5}]),
            "messages[0]: content must be a string, a list of parts or null",
        ),
        (
            image,
            "messages[1]: content[0] has type \"image_url\"; this model takes text only",
        ),
    ];
    for (messages, expected) in cases {
        let error = render_with("x", &messages, None, json!({})).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_raising_template_gives_its_message() {
    let error = render(
        "{% macro m() %}{{ raise_exception('roles must alternate') }}{% endmacro %}{{ m() }}",
    )
    .unwrap_err();
    assert!(matches!(error, TextError::TemplateRaised { .. }));
    assert_eq!(error.to_string(), "roles must alternate");
}

#[test]
fn generation_blocks_are_rendered() {
    let source = "{% for m in messages %}{%- generation -%} {{ m.content }} {%- endgeneration \
        %}{% endfor %}";
    assert_eq!(render(source).unwrap(), "hi");
}

#[test]
fn strftime_now_prints_a_date() {
    let date = render("{{ strftime_now('%d %b %Y') }}").unwrap();
    assert_eq!(date.split(' ').map(str::len).collect::<Vec<_>>(), [2, 3, 4]);
}

#[test]
fn endless_loops_run_out_of_fuel() {
    let loops = "{% for a in range(100000) %}".repeat(4);
    let error = render(&format!(
        "{loops}{{% set x = 1 %}}{}",
        "{% endfor %}".repeat(4)
    ))
    .unwrap_err();
    assert!(matches!(error, TextError::TemplateLimit { .. }), "{error}");
}

#[test]
fn huge_outputs_are_refused() {
    let repeated = render("{{ 'a' * 10**9 }}").unwrap_err();
    assert!(
        matches!(repeated, TextError::TemplateLimit { .. }),
        "{repeated}"
    );
    for source in [
        "{% for a in range(100000) %}{{ 'abcdefgh' * 1000 }}{% endfor %}",
        "{{ 'a' * (40 * 1024 * 1024) }}",
    ] {
        let error = render(source).unwrap_err();
        assert!(matches!(error, TextError::TemplateLimit { .. }), "{error}");
        assert!(error.to_string().contains("32 MiB"), "{error}");
    }
}

#[test]
fn recursion_ends_in_an_error() {
    for source in [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro a(n) %}{{ b(n) }}{% endmacro %}{% macro b(n) %}{{ a([n]) }}{% endmacro %}{{ \
         a(1) }}",
        "{% include 'chat_template' %}",
        "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
    ] {
        let error = render(source).unwrap_err();
        assert!(
            matches!(error, TextError::TemplateRender { .. }),
            "{source}: {error}"
        );
    }
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(matches!(
        render(&nested),
        Err(TextError::TemplateSyntax { .. })
    ));
}

#[test]
fn nothing_outside_the_variables_can_be_reached() {
    for source in [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends '/etc/passwd' %}",
        "{{ open('/etc/passwd') }}",
        "{{ cycler.__init__ }}{{ self.__init__ }}{{ x.y }}",
    ] {
        let error = render(source).unwrap_err();
        assert!(
            matches!(error, TextError::TemplateRender { .. }),
            "{source}: {error}"
        );
    }
}

#[test]
fn a_template_that_does_not_parse_is_refused_at_start() {
    let error = ChatTemplate::parse("{% if %}", tokens()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("chat template does not parse"),
        "{error}"
    );
}

fn directory(name: &str, files: &[(&str, Value)]) -> std::path::PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    let model =
        json!({"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1, "hi": 2}, "unk_token": "<s>"});
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [special(0, "<s>"), special(1, "</s>")],
        "truncation":
            {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0},
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model});
    for (file, content) in [("tokenizer.json", tokenizer)].iter().chain(files) {
        let text = content
            .as_str()
            .map_or_else(|| content.to_string(), str::to_owned);
        std::fs::write(directory.join(file), text).unwrap();
    }
    directory
}

#[test]
fn a_directory_without_template_says_what_to_do() {
    let model = TextModel::open(&directory("no_template", &[]), None).unwrap();
    let messages = json!([{"role": "user"}]);
    let error = model
        .render(&Conversation::of(&messages), true)
        .unwrap_err();
    assert!(error.to_string().contains("--chat-template"), "{error}");
}

#[test]
fn the_template_file_wins_and_the_override_wins_over_it() {
    let config =
        json!({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "config"});
    let in_config = directory(
        "config_template",
        &[("tokenizer_config.json", config.clone())],
    );
    let file = directory(
        "file_template",
        &[
            ("tokenizer_config.json", config),
            ("chat_template.jinja", json!("{{ bos_token }} hi")),
        ],
    );
    let replacement = file.join("other.jinja");
    std::fs::write(&replacement, "{{ eos_token }}").unwrap();
    let ids = |path: &Path, other: Option<&Path>| {
        let model = TextModel::open(path, other).unwrap();
        let messages = json!([{"role": "user"}]);
        let prompt = model.render(&Conversation::of(&messages), true).unwrap();
        model.encode_rendered(&prompt).unwrap()
    };
    assert_eq!(ids(&file, None), [0, 2]);
    assert_eq!(ids(&file, Some(&replacement)), [1]);
    assert_eq!(ids(&in_config, None), [0]);
    let missing = TextModel::open(&file, Some(&file.join("none.jinja"))).unwrap_err();
    assert!(missing.to_string().contains("none.jinja"), "{missing}");
}

#[test]
fn a_template_for_tools_is_taken_when_there_are_tools() {
    let list = json!([{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]);
    let path = directory(
        "two_templates",
        &[("tokenizer_config.json", json!({"chat_template": list}))],
    );
    let model = TextModel::open(&path, None).unwrap();
    let text = |tools: Option<&Value>| {
        let messages = json!([{"role": "user"}]);
        let chat = Conversation {
            tools,
            ..Conversation::of(&messages)
        };
        model.render(&chat, true).unwrap().written()
    };
    assert_eq!(
        (text(None), text(Some(&json!([1])))),
        ("d".to_owned(), "t".to_owned())
    );
}

#[test]
fn llama_classes_take_bos_and_eos_from_the_configuration() {
    let config = |class: &str| {
        json!({"tokenizer_class": class, "bos_token": "<s>", "eos_token": "</s>",
               "add_eos_token": true})
    };
    let ids = |name: &str, class: &str| {
        let model = TextModel::open(
            &directory(name, &[("tokenizer_config.json", config(class))]),
            None,
        )
        .unwrap();
        (
            model.tokenizer.encode("hi hi", true).unwrap(),
            model.tokenizer.encode("hi", false).unwrap(),
        )
    };
    assert_eq!(
        ids("llama_class", "LlamaTokenizerFast"),
        (vec![0, 2, 2, 1], vec![2])
    );
    assert_eq!(
        ids("other_class", "PreTrainedTokenizerFast"),
        (vec![2, 2], vec![2])
    );
}

#[test]
fn a_token_id_far_beyond_all_others_is_refused() {
    let path = directory("far_token", &[]);
    let file = path.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for id in [200_000_000_u32, 1 << 31, u32::MAX] {
        tokenizer["model"]["vocab"]["far"] = json!(id);
        std::fs::write(&file, tokenizer.to_string()).unwrap();
        let error = TextModel::open(&path, None).unwrap_err().to_string();
        assert!(error.contains(&format!("token id {id}")), "{error}");
    }
}

#[test]
fn a_directory_without_tokenizer_is_named() {
    let path = directory("no_tokenizer", &[]);
    std::fs::remove_file(path.join("tokenizer.json")).unwrap();
    assert!(matches!(
        TextModel::open(&path, None),
        Err(TextError::NoTokenizer { .. })
    ));
    std::fs::write(path.join("tokenizer.json"), "{\"model\": 1}").unwrap();
    assert!(matches!(
        TextModel::open(&path, None),
        Err(TextError::BadFile { .. })
    ));
}

#[test]
fn a_template_that_another_process_runs_has_the_same_outcome() {
    let plain = TextModel::of_words(9).unwrap();
    let mut remote = TextModel::of_words(9).unwrap();
    remote.elsewhere = Some(Elsewhere::new(|job| Ok(run_template_job(job).ok())));
    let messages = json!([{"role": "user", "content": "hi"}]);
    let tools = json!([{"type": "function"}]);
    let kwargs: Map<String, Value> = serde_json::from_value(json!({"style": "new"})).unwrap();
    let shown = |model: &TextModel, source| {
        let chat = Conversation {
            template: Some(source),
            tools: Some(&tools),
            template_kwargs: Some(&kwargs),
            ..Conversation::of(&messages)
        };
        let rendered = model.render(&chat, true);
        rendered.map(|r| r.written()).map_err(|e| e.to_string())
    };
    for source in [
        "{{ messages[0].content }} {{ style }} {{ tools|tojson }} {{ add_generation_prompt }}",
        "{% if %}",
        "{{ raise_exception('no') }}",
        "{{ nothing.more }}",
        "{{ 'a' * 10**9 }}",
    ] {
        assert_eq!(shown(&remote, source), shown(&plain, source), "{source}");
    }
    remote.elsewhere = Some(Elsewhere::new(|_| Ok(None)));
    assert!(shown(&remote, "a").unwrap_err().contains("memory or time"));
    remote.elsewhere = Some(Elsewhere::new(|_| {
        Err(std::io::ErrorKind::OutOfMemory.into())
    }));
    assert!(shown(&remote, "a").unwrap_err().contains("cannot start"));
    let own = Conversation::of(&messages);
    assert!(remote.render(&own, true).is_ok());
}

#[test]
fn templates_with_names_are_files() {
    let path = directory("named_templates", &[("chat_template.jinja", json!("d"))]);
    let names = path.join("additional_chat_templates");
    std::fs::create_dir(&names).unwrap();
    std::fs::write(names.join("tool_use.jinja"), "t").unwrap();
    std::fs::write(names.join("rag.jinja"), "{% broken").unwrap();
    let model = TextModel::open(&path, None).unwrap();
    let messages = json!([{"role": "user"}]);
    let text = |tools: Option<&Value>| {
        let chat = Conversation {
            tools,
            ..Conversation::of(&messages)
        };
        model.render(&chat, true).unwrap().written()
    };
    assert_eq!(text(None), "d");
    assert_eq!(text(Some(&json!([1]))), "t");
}
