//! Anthropic's `/v1/messages`: events, whole messages, errors in its form, keys in its header.

use penstock_engine_client::testing::{Action, Script};
use penstock_wire::{Finish, Output};
use serde_json::{Value, json};

use crate::client::{Reply, exchange, request};
use crate::door::{Door, bytes_as_tokens, send};
use crate::responses::{ends, named_events, types};

const PATH: &str = "/v1/messages";

fn hi() -> Value {
    json!({"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]})
}

fn says(text: &'static str) -> Vec<Action> {
    let last = Output {
        tokens: vec![258],
        finish: Finish::Stop,
        stop_token: Some(258),
        cached_tokens: 16,
        ..Output::default()
    };
    let ids = bytes_as_tokens(text);
    let mut actions: Vec<Action> = ids.iter().map(|id| send(&[*id], Finish::None)).collect();
    actions.push(Action::Send(last));
    actions
}

/// The status and type of an error in Anthropic's form.
fn kind(reply: &Reply) -> (u16, String) {
    let body = reply.json();
    assert_eq!(body["type"], "error");
    assert_eq!(body["request_id"].as_str(), reply.header("request-id"));
    (
        reply.status,
        body["error"]["type"].as_str().unwrap().to_owned(),
    )
}

#[tokio::test]
async fn a_stream_of_events() {
    let door = Door::open(|_| says("Hé")).await;
    let mut body = hi();
    body["stream"] = true.into();
    let events = named_events(&door.post(PATH, &body).await);
    assert_eq!(
        types(&events),
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 21);
    assert_eq!(
        events[3]["delta"],
        json!({"type": "text_delta", "text": "H"})
    );
    assert_eq!(
        events[6]["delta"],
        json!({"stop_reason": "end_turn", "stop_sequence": null})
    );
    assert_eq!(events[6]["usage"]["output_tokens"], 4);
    assert_eq!(events[6]["usage"]["cache_read_input_tokens"], 16);
}

#[tokio::test]
async fn a_whole_message() {
    let door = Door::open(|_| says("one END two")).await;
    let mut body = hi();
    body["stop_sequences"] = json!(["END"]);
    let reply = door.post(PATH, &body).await;
    let mut message = reply.json();
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    message["id"] = json!(null);
    assert_eq!(
        message,
        json!({"id": null, "type": "message", "role": "assistant", "model": "tiny",
               "content": [{"type": "text", "text": "one "}],
               "stop_reason": "stop_sequence", "stop_sequence": "END",
               "usage": {"input_tokens": 21, "output_tokens": 7,
                         "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}})
    );
}

#[tokio::test]
async fn max_tokens_are_a_bound() {
    let script = Script::new(|_| vec![send(&[97], Finish::Length)]);
    let door = Door::open_with(json!({"max_model_len": 100}), script).await;
    let mut body = hi();
    assert_eq!(
        door.post(PATH, &body).await.json()["stop_reason"],
        "max_tokens"
    );
    body["max_tokens"] = 32_000.into();
    let reply = door.post(PATH, &body).await.json();
    assert_eq!(reply["stop_reason"], "model_context_window_exceeded");
    let asked: Vec<_> = door
        .fake
        .log()
        .adds
        .iter()
        .map(|a| a.request.max_tokens)
        .collect();
    assert_eq!(asked, [50, 79]);
    body["messages"][0]["content"] = "x".repeat(90).into();
    let reply = door.post(PATH, &body).await;
    assert_eq!(kind(&reply), (400, "invalid_request_error".to_owned()));
    let message = reply.json()["error"]["message"].clone();
    assert!(message.as_str().unwrap().starts_with("prompt is too long"));
}

#[tokio::test]
async fn errors_have_the_form_of_the_protocol() {
    let script = Script::new(|_| says("a"));
    let door = Door::open_with(json!({"api_keys": ["secret"]}), script).await;
    let reply = door.post(PATH, &hi()).await;
    assert_eq!(kind(&reply), (401, "authentication_error".to_owned()));
    let body = hi().to_string();
    let headers = "x-api-key: secret\r\nanthropic-version: 2023-06-01\r\n";
    let keyed = |body: &str| request("POST", PATH, headers, body.as_bytes());
    let reply = exchange(door.address, &keyed(&body)).await;
    assert_eq!(reply.status, 200);
    assert!(reply.header("request-id").is_some());
    for (body, status, expected) in [
        ("{}", 400, "invalid_request_error"),
        ("[", 400, "invalid_request_error"),
        (
            r#"{"model": "x", "messages": [{"role": "user", "content": "hi"}]}"#,
            404,
            "not_found_error",
        ),
    ] {
        let reply = exchange(door.address, &keyed(body)).await;
        assert_eq!(kind(&reply), (status, expected.to_owned()), "{body}");
    }
    let reply = exchange(door.address, &request("GET", PATH, headers, b"")).await;
    assert_eq!(kind(&reply).0, 405);
    let large = format!(r#"{{"system": "{}"}}"#, "x".repeat(100_000));
    let reply = exchange(door.address, &keyed(&large)).await;
    assert_eq!(kind(&reply), (413, "request_too_large".to_owned()));
}

#[tokio::test]
async fn an_engine_that_dies_ends_the_stream_with_an_error() {
    let door = Door::open(|_| vec![send(&[97], Finish::None), Action::Die]).await;
    let mut body = hi();
    body["stream"] = true.into();
    let events = named_events(&door.post(PATH, &body).await);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "error");
    assert_eq!(last["error"]["type"], "api_error");
}

#[tokio::test]
async fn tokens_are_counted_without_the_engine() {
    let door = Door::saying("a").await;
    let reply = door.post("/v1/messages/count_tokens", &hi()).await;
    assert_eq!(reply.json(), json!({"input_tokens": 21}));
    assert!(door.fake.log().adds.is_empty());
}

#[tokio::test]
async fn calls_are_blocks() {
    let door = Door::open(|_| {
        ends(
            "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n\
             </tool_call>",
        )
    })
    .await;
    let mut body = hi();
    body["tools"] = json!([{"name": "weather", "input_schema": {"type": "object"}}]);
    let message = door.post(PATH, &body).await.json();
    assert_eq!(message["stop_reason"], "tool_use");
    let blocks = &message["content"];
    assert_eq!(blocks[0], json!({"type": "text", "text": "I look."}));
    assert_eq!(blocks[1]["type"], "tool_use");
    assert_eq!(blocks[1]["input"], json!({"city": "Paris"}));
    let id = blocks[1]["id"].clone();
    let result = json!([{"type": "tool_result", "tool_use_id": id, "content": "rain"}]);
    body["messages"] = json!([{"role": "user", "content": "hi"},
        {"role": "assistant", "content": blocks}, {"role": "user", "content": result}]);
    body["stream"] = true.into();
    let events = named_events(&door.post(PATH, &body).await);
    let of_call = events
        .iter()
        .filter(|e| e["delta"]["type"] == "input_json_delta");
    let arguments: String = of_call
        .map(|e| e["delta"]["partial_json"].as_str().unwrap())
        .collect();
    assert_eq!(arguments, "{\"city\": \"Paris\"}");
    let end = events
        .iter()
        .find(|e| e["type"] == "message_delta")
        .unwrap();
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
}

#[tokio::test]
async fn the_answer_goes_on_where_the_assistant_ended() {
    let door = Door::saying(" then").await;
    let mut body = hi();
    let messages = json!([{"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Well,"}]);
    body["messages"] = messages.clone();
    assert_eq!(door.post(PATH, &body).await.status, 200);
    let by_chat = json!({"messages": messages, "continue_final_message": true,
        "add_generation_prompt": false});
    assert_eq!(door.chat(&by_chat).await.status, 200);
    let adds = door.fake.log().adds;
    let prompt = door
        .post("/detokenize", &json!({"tokens": adds[0].request.prompt}))
        .await;
    let prompt = prompt.json()["prompt"].as_str().unwrap().to_owned();
    assert!(
        prompt.ends_with("<|im_start|>assistant\nWell,"),
        "{prompt:?}"
    );
    assert_eq!(adds[0].request.prompt, adds[1].request.prompt);
}
