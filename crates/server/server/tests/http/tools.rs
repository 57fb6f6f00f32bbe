//! Tool calls and reasoning: what the prompt gets, and what becomes of the output.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_engine_client::testing::{Action, Script, tokens};
use penstock_wire::Finish;
use serde_json::{Value, json};

use crate::door::{Door, bytes_as_tokens, send};

/// `<|im_end|>` of the tiny model.
const END: u32 = 258;

const CALLS: &str = "I look.\n<tool_call>\n\
    {\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n\
    </tool_call>\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>";

fn asking(more: Value) -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}],
        "tools": [tool("weather"), tool("clock")]});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// A token for each byte, then the model's own end.
fn stopping(text: &str) -> Vec<Action> {
    let ids = bytes_as_tokens(text);
    let ends = |at| match at + 1 == ids.len() {
        true => Finish::Stop,
        false => Finish::None,
    };
    let sent = ids.iter().enumerate();
    sent.map(|(at, &id)| send(&[id], ends(at))).collect()
}

async fn answer(text: &'static str, body: &Value) -> Value {
    let door = Door::open(move |_| stopping(text)).await;
    let reply = door.chat(body).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

/// Calls without their ids, which are checked here.
fn without_ids(message: &Value) -> Value {
    let mut calls = message["tool_calls"].clone();
    let mut ids = Vec::new();
    for call in calls.as_array_mut().unwrap() {
        let id = call.as_object_mut().unwrap().remove("id").unwrap();
        let id = id.as_str().unwrap().to_owned();
        assert!(id.starts_with("call_") && !ids.contains(&id), "{id}");
        ids.push(id);
    }
    calls
}

#[tokio::test]
async fn a_whole_answer_with_calls() {
    let json = answer(CALLS, &asking(json!({}))).await;
    let choice = &json["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "I look.");
    assert_eq!(
        without_ids(&choice["message"]),
        json!([
            {"type": "function",
             "function": {"name": "weather", "arguments": "{\"city\": \"Paris\"}"}},
            {"type": "function", "function": {"name": "clock", "arguments": "{}"}},
        ])
    );
}

#[tokio::test]
async fn a_streamed_answer_adds_up_to_the_whole_one() {
    let door = Door::open(|_| stopping(CALLS)).await;
    let reply = door.chat(&asking(json!({"stream": true}))).await;
    let (mut content, mut finish) = (String::new(), Value::Null);
    let mut calls: Vec<(String, String)> = Vec::new();
    for event in reply.events() {
        let choice = &event["choices"][0];
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for call in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            if let Some(name) = call["function"]["name"].as_str() {
                assert_eq!(call["type"], "function");
                assert!(call["id"].as_str().unwrap().starts_with("call_"));
                assert_eq!(call["index"], calls.len());
                calls.push((name.to_owned(), String::new()));
            }
            let (_, all) = &mut calls[call["index"].as_u64().unwrap() as usize];
            all.push_str(arguments);
        }
        finish = choice["finish_reason"].clone();
    }
    assert_eq!(content, "I look.");
    assert_eq!(finish, "tool_calls");
    let expected = [("weather", "{\"city\": \"Paris\"}"), ("clock", "{}")];
    assert_eq!(calls, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[tokio::test]
async fn choices_of_the_request() {
    // Rendered, not read.
    let none = answer(CALLS, &asking(json!({"tool_choice": "none"}))).await;
    assert_eq!(none["choices"][0]["message"]["content"], CALLS);
    assert_eq!(none["choices"][0]["finish_reason"], "stop");
    let one = answer(CALLS, &asking(json!({"parallel_tool_calls": false}))).await;
    assert_eq!(one["choices"][0]["message"]["tool_calls"][1], Value::Null);
    // Text that only looks like a call.
    let text = answer("a <tool_call> b", &asking(json!({}))).await;
    assert_eq!(text["choices"][0]["message"]["content"], "a <tool_call> b");
    assert_eq!(text["choices"][0]["message"].get("tool_calls"), None);
}

#[tokio::test]
async fn functions_are_answered_in_their_form() {
    let body = json!({"messages": [{"role": "user", "content": "hi"}],
        "functions": [{"name": "weather"}]});
    let json = answer(CALLS, &body).await;
    let choice = &json["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call");
    assert_eq!(
        choice["message"]["function_call"],
        json!({"name": "weather", "arguments": "{\"city\": \"Paris\"}"})
    );
    assert_eq!(choice["message"].get("tool_calls"), None);
}

/// The tiny model's template knows no tools, so they are written into the messages.
#[tokio::test]
async fn the_prompt_has_the_tools_and_the_history() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let prompts = seen.clone();
    let script = Script::new(move |add| {
        prompts.lock().unwrap().push(add.request.prompt.clone());
        tokens(&bytes_as_tokens("ok"), Duration::ZERO)
    });
    let door = Door::open_with(json!({}), script).await;
    let mut body = asking(json!({}));
    body["messages"] = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "tool_calls": [{"id": "a", "type": "function",
            "function": {"name": "weather", "arguments": "{\"city\":\"Paris\"}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]);
    assert_eq!(door.chat(&body).await.status, 200);
    let ids = seen.lock().unwrap()[0].clone();
    let reply = door.post("/detokenize", &json!({"tokens": ids})).await;
    let prompt = reply.json()["prompt"].as_str().unwrap().to_owned();
    for part in [
        "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\"",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
        "<tool_response>\nrain\n</tool_response>",
    ] {
        assert!(prompt.contains(part), "{part} is not in {prompt}");
    }
}

#[tokio::test]
async fn reasoning_has_both_spellings() {
    let with = json!({"reasoning_parser": "qwen3"});
    let say = |_: &_| tokens(&bytes_as_tokens("<think>Hm.</think>Yes."), Duration::ZERO);
    let door = Door::open_with(with, Script::new(say)).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    let json = door.chat(&body).await.json();
    let message = &json["choices"][0]["message"];
    assert_eq!(message["content"], "Yes.");
    assert_eq!(message["reasoning"], "Hm.");
    assert_eq!(message["reasoning_content"], "Hm.");
    let details = &json["usage"]["completion_tokens_details"];
    // A token is a byte here: `Hm.` and the beginning of the mark.
    assert_eq!(details["reasoning_tokens"], "Hm.</think".len());
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "include_reasoning": false});
    let json = door.chat(&body).await.json();
    assert_eq!(
        json["choices"][0]["message"],
        json!({"role": "assistant", "content": "Yes."})
    );
}

/// Marks that are special tokens reach the parser, others do not reach the text.
#[tokio::test]
async fn marks_may_be_special_tokens() {
    let mut ids = bytes_as_tokens(CALLS);
    ids.push(END);
    ids.push(u32::from(b'x'));
    let script = Script::new(move |_| tokens(&ids, Duration::ZERO));
    let door = Door::open_with(json!({"tool_call_parser": "hermes"}), script).await;
    let json = door.chat(&asking(json!({}))).await.json();
    assert_eq!(json["choices"][0]["message"]["content"], "I look.x");
}

#[tokio::test]
async fn unknown_parsers_are_refused_at_the_start() {
    let text = json!({"host": "127.0.0.1", "port": 0, "served_model_names": ["m"],
        "model_path": "m", "chat_template": null, "api_keys": [], "generation_defaults": {},
        "engine": {"argv": null, "socket_dir": null}, "max_queue": 4, "drain_timeout_s": 5.0,
        "stall_timeout_s": 5.0, "max_model_len": null, "version": "1", "tool_call_parser": "x"});
    let error = penstock_server::Config::from_json(&text.to_string()).unwrap_err();
    assert!(
        error.contains("tool_call_parser is \"x\"; known are auto, hermes"),
        "{error}"
    );
}

#[tokio::test]
async fn demanded_calls_have_a_grammar() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let grammars = seen.clone();
    let script = Script::new(move |add| {
        grammars.lock().unwrap().push(add.request.grammar.clone());
        stopping("<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>")
    });
    let door = Door::open_with(json!({}), script).await;
    let named = json!({"type": "function", "function": {"name": "clock"}});
    let reply = door.chat(&asking(json!({"tool_choice": named}))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let json = reply.json();
    let choice = &json["choices"][0];
    assert_eq!(choice["message"]["content"], Value::Null);
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"]["name"],
        "clock"
    );
    assert_eq!(choice["finish_reason"], "stop");
    let required = door
        .chat(&asking(json!({"tool_choice": "required"})))
        .await
        .json();
    assert_eq!(required["choices"][0]["finish_reason"], "tool_calls");
    door.chat(&asking(json!({}))).await;
    let seen = seen.lock().unwrap();
    let text = |at: usize| seen[at].as_ref().map(|grammar| grammar.text.clone());
    let names = |text: &str| (text.contains("weather"), text.contains("clock"));
    assert_eq!(names(&text(0).unwrap()), (false, true));
    assert_eq!(names(&text(1).unwrap()), (true, true));
    assert_eq!(text(2), None);
}

#[tokio::test]
async fn demanded_calls_stand_above_a_response_format_and_beside_no_other_grammar() {
    let door = Door::open(|_| stopping("x")).await;
    let format = json!({"tool_choice": "required", "response_format": {"type": "json_object"}});
    assert_eq!(door.chat(&asking(format)).await.status, 200);
    let more = json!({"tool_choice": "required", "structured_outputs": {"regex": "a+"}});
    let (status, error) = door.chat(&asking(more)).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("tool_choice")));
}

#[tokio::test]
async fn strict_tools_have_a_grammar_also_where_text_is_free() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let grammars = seen.clone();
    let script = Script::new(move |add| {
        grammars.lock().unwrap().push(add.request.grammar.clone());
        stopping("So: <tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>")
    });
    let door = Door::open_with(json!({}), script).await;
    let clock = |parameters: Value| {
        json!([{"type": "function",
        "function": {"name": "clock", "strict": true, "parameters": parameters}}])
    };
    let strict = clock(json!({"type": "object"}));
    let asked = [
        json!({"tools": strict}),
        json!({"tools": strict, "tool_choice": "none"}),
        json!({"tools": strict, "structured_outputs": {"regex": "a+"}}),
        json!({"tools": strict, "ignore_eos": true, "max_tokens": 5}),
    ];
    for more in asked {
        let reply = door.chat(&asking(more)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let seen: Vec<_> = seen.lock().unwrap().drain(..).collect();
    let text = |at: usize| {
        seen[at]
            .as_ref()
            .map(|g| g.text.clone())
            .unwrap_or_default()
    };
    assert!(text(0).contains("triggered_tags"), "{}", text(0));
    assert_eq!([text(1), text(2), text(3)], ["", "a+", ""]);
    let wrong = json!({"tools": clock(json!({"type": "object", "not": {}}))});
    let (status, error) = door.chat(&asking(wrong)).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("tools")));
}

/// Tools `alpha`, `beta` and `gamma`; `beta` has parameters that no grammar honours.
fn three(strict: bool) -> Value {
    let tool = |name: &str, strict: bool, parameters: Value| {
        json!({"type": "function",
            "function": {"name": name, "strict": strict, "parameters": parameters}})
    };
    let list = json!({"type": "object", "properties": {
        "ids": {"type": "array", "items": {"type": "integer"}, "uniqueItems": true}}});
    let plain = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    json!([
        tool("alpha", false, plain.clone()),
        tool("beta", strict, list),
        tool("gamma", false, plain)
    ])
}

#[tokio::test]
async fn a_schema_that_no_grammar_honours_is_any_object_unless_its_tool_is_strict() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let grammars = seen.clone();
    let script = Script::new(move |add| {
        grammars.lock().unwrap().push(add.request.grammar.clone());
        stopping("<tool_call>\n{\"name\": \"beta\", \"arguments\": {}}\n</tool_call>")
    });
    let door = Door::open_with(json!({}), script).await;
    let asked = json!({"tools": three(false), "tool_choice": "required"});
    let reply = door.chat(&asking(asked)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let text = seen.lock().unwrap()[0].as_ref().unwrap().text.clone();
    assert!(!text.contains("uniqueItems"), "{text}");
    assert_eq!(
        text.matches(r#""x":{"type":"integer"}"#).count(),
        2,
        "{text}"
    );

    for choice in ["required", "auto"] {
        let asked = json!({"tools": three(true), "tool_choice": choice});
        let (status, error) = door.chat(&asking(asked)).await.error();
        assert_eq!((status, &error["param"]), (400, &json!("tools")));
        assert_eq!(
            error["message"],
            "tools: the parameters of beta: uniqueItems at #/properties/ids is not supported."
        );
    }
}

#[tokio::test]
async fn errors_of_grammars_are_in_the_words_of_the_request() {
    let door = Door::open(|_| stopping("x")).await;
    let branches = json!({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 2}]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": branches}});
    let (status, error) = door
        .chat(&json!({"messages": [{"role": "user", "content": "x"}], "response_format": format}))
        .await
        .error();
    assert_eq!((status, &error["param"]), (400, &json!("response_format")));
    assert_eq!(
        error["message"],
        "response_format: oneOf is not supported where its branches may overlap."
    );
}
