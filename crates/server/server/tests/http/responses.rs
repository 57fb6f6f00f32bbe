//! `/v1/responses`: events, whole responses, errors, and what reaches the engine.

use std::time::Duration;

use penstock_engine_client::testing::{Action, Script, tokens};
use penstock_wire::{Finish, LogprobRow, Output};
use serde_json::{Value, json};

use crate::client::Reply;
use crate::door::{Door, bytes_as_tokens, send};

const PATH: &str = "/v1/responses";

/// Named events; the name is also the `type` of the data.
pub(crate) fn named_events(reply: &Reply) -> Vec<Value> {
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data = data.strip_prefix("data: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name.strip_prefix("event: ").unwrap());
        data
    };
    reply.text().split_terminator("\n\n").map(event).collect()
}

pub(crate) fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|e| e["type"].as_str().unwrap()).collect()
}

fn stops(text: &str) -> Vec<Action> {
    let last = Output {
        tokens: vec![258],
        finish: Finish::Stop,
        stop_token: Some(258),
        cached_tokens: 16,
        ..Output::default()
    };
    let mut actions: Vec<Action> = bytes_as_tokens(text)
        .iter()
        .map(|id| send(&[*id], Finish::None))
        .collect();
    actions.push(Action::Send(last));
    actions
}

#[tokio::test]
async fn a_stream_is_a_sequence_of_typed_events() {
    let door = Door::open(|_| stops("Hé")).await;
    let reply = door
        .post(PATH, &json!({"input": "hi", "stream": true}))
        .await;
    assert_eq!(reply.status, 200);
    let events = named_events(&reply);
    assert_eq!(
        types(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let numbers: Vec<_> = events
        .iter()
        .map(|e| e["sequence_number"].as_u64())
        .collect();
    assert_eq!(numbers, (0..10).map(Some).collect::<Vec<_>>());
    assert_eq!(events[6]["text"], "Hé");
    let response = &events[9]["response"];
    assert_eq!(response["id"], events[0]["response"]["id"]);
    assert_eq!(
        response["usage"],
        json!({"input_tokens": 21, "input_tokens_details": {"cached_tokens": 16,
               "cache_write_tokens": 0}, "output_tokens": 4,
               "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 25})
    );
}

#[tokio::test]
async fn a_whole_response_is_what_the_stream_ends_with() {
    let door = Door::open(|_| stops("Hé")).await;
    let mut body = json!({"input": "hi", "instructions": "be kind", "metadata": {"a": "b"}});
    let whole = door.post(PATH, &body).await.json();
    body["stream"] = true.into();
    let mut last = named_events(&door.post(PATH, &body).await).pop().unwrap();
    let (mut whole, last) = (whole, &mut last["response"]);
    assert_eq!(whole["output"][0]["content"][0]["text"], "Hé");
    assert_eq!(whole["status"], "completed");
    assert_eq!(whole["metadata"], json!({"a": "b"}));
    assert_eq!(whole["temperature"], 0.5, "the server's default");
    for response in [&mut whole, last] {
        response["id"] = json!(null);
        response["created_at"] = json!(null);
        response["output"][0]["id"] = json!(null);
    }
    assert_eq!(whole, *last);
    let prompts: Vec<_> = door.fake.log().adds;
    assert_eq!(prompts[0].request.prompt, prompts[1].request.prompt);
}

#[tokio::test]
async fn more_tokens_than_fit_are_a_bound_and_the_end_is_incomplete() {
    let script = Script::new(|_| tokens(&[97, 98], Duration::ZERO));
    let door = Door::open_with(json!({"max_model_len": 100}), script).await;
    let body = json!({"input": "hi", "max_output_tokens": 1_000_000});
    let reply = door.post(PATH, &body).await.json();
    assert_eq!(reply["status"], "incomplete");
    assert_eq!(
        reply["incomplete_details"],
        json!({"reason": "max_output_tokens"})
    );
    assert_eq!(door.fake.log().adds[0].request.max_tokens, 79);
    let long = door.post(PATH, &json!({"input": "x".repeat(90)})).await;
    let (status, error) = long.error();
    assert_eq!((status, &error["param"]), (400, &json!("input")));
    assert_eq!(error["code"], "context_length_exceeded");
}

#[tokio::test]
async fn logprobs_come_where_they_are_asked_for() {
    let door = Door::open(|_| {
        let row = LogprobRow {
            logprob: -0.5,
            rank: 1,
            alternatives: vec![(97, -0.5)],
        };
        let output = Output {
            tokens: vec![97],
            logprobs: vec![row],
            finish: Finish::Length,
            ..Output::default()
        };
        vec![Action::Send(output)]
    })
    .await;
    let include = json!(["message.output_text.logprobs"]);
    let body = json!({"input": "hi", "include": include, "top_logprobs": 1, "stream": true});
    let events = named_events(&door.post(PATH, &body).await);
    let top = json!([{"token": "a", "logprob": -0.5, "bytes": [97]}]);
    let expected = json!([{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": top}]);
    for (event, at) in [(4, "/logprobs"), (5, "/logprobs"), (6, "/part/logprobs")] {
        assert_eq!(
            events[event].pointer(at),
            Some(&expected),
            "{}",
            events[event]
        );
    }
}

#[tokio::test]
async fn an_engine_that_dies_fails_the_response() {
    let door = Door::open(|_| vec![send(&[97], Finish::None), Action::Die]).await;
    let reply = door
        .post(PATH, &json!({"input": "hi", "stream": true}))
        .await;
    let events = named_events(&reply);
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.failed");
    assert_eq!(last["response"]["status"], "failed");
    assert_eq!(last["response"]["error"]["code"], "server_error");
}

#[tokio::test]
async fn nothing_is_stored() {
    let door = Door::saying("a").await;
    let body = json!({"input": "hi", "previous_response_id": "resp_1"});
    let (status, error) = door.post(PATH, &body).await.error();
    assert_eq!(
        (status, &error["param"]),
        (400, &json!("previous_response_id"))
    );
    assert_eq!(
        door.post(PATH, &json!({"input": "hi", "store": true}))
            .await
            .status,
        200
    );
    let (status, error) = door.get("/v1/responses/resp_1").await.error();
    assert_eq!(status, 404);
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("does not store")
    );
    let reply = door.keyed("DELETE", "/v1/responses/resp_1", "x", "").await;
    assert_eq!(reply.status, 404);
    let reply = door.post("/v1/responses/resp_1/cancel", &json!({})).await;
    assert_eq!(reply.status, 404);
}

#[tokio::test]
async fn input_tokens_are_counted_without_the_engine() {
    let door = Door::saying("a").await;
    let reply = door
        .post("/v1/responses/input_tokens", &json!({"input": "hi"}))
        .await;
    let expected = json!({"object": "response.input_tokens", "input_tokens": 21});
    assert_eq!(reply.json(), expected);
    assert!(door.fake.log().adds.is_empty());
}

const CALL: &str = "I look.\n<tool_call>\n\
    {\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

/// A token for each byte; the last finishes.
pub(crate) fn ends(text: &str) -> Vec<Action> {
    let mut ids = bytes_as_tokens(text);
    let last = ids.pop().unwrap();
    let mut actions: Vec<Action> = ids.iter().map(|id| send(&[*id], Finish::None)).collect();
    actions.push(send(&[last], Finish::Stop));
    actions
}

#[tokio::test]
async fn calls_are_items_and_so_is_reasoning() {
    let script = Script::new(|_| ends(&format!("<think>Hm.</think>{CALL}")));
    let door = Door::open_with(json!({"reasoning_parser": "qwen3"}), script).await;
    let tools = json!([{"type": "function", "name": "weather", "parameters": null},
        {"type": "web_search"}]);
    let body = json!({"input": "hi", "tools": tools, "stream": true});
    let events = named_events(&door.post(PATH, &body).await);
    let deltas = |kind: &str| -> String {
        let of_kind = events.iter().filter(|event| event["type"] == kind);
        of_kind.map(|e| e["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(deltas("response.reasoning_text.delta"), "Hm.");
    assert_eq!(deltas("response.output_text.delta"), "I look.");
    let arguments = "{\"city\": \"Paris\"}";
    assert_eq!(deltas("response.function_call_arguments.delta"), arguments);
    let response = &events.last().unwrap()["response"];
    let output = response["output"].as_array().unwrap();
    let kinds: Vec<_> = output.iter().map(|i| i["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(output[2]["name"], "weather");
    assert_eq!(output[2]["arguments"], arguments);
    assert!(output[2]["call_id"].as_str().unwrap().starts_with("call_"));
    assert_eq!(response["status"], "completed");
    assert_eq!(response["tools"].as_array().map(Vec::len), Some(1));
    let details = &response["usage"]["output_tokens_details"];
    assert_eq!(details["reasoning_tokens"], "Hm.</think".len());
    // The next turn: what was answered, and the result.
    let mut input = vec![json!({"role": "user", "content": "hi"})];
    input.extend(output.iter().cloned());
    let call_id = &output[2]["call_id"];
    input.push(json!({"type": "function_call_output", "call_id": call_id, "output": "rain"}));
    let reply = door
        .post(PATH, &json!({"input": input, "tools": tools}))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let prompt = door.fake.log().adds[1].request.prompt.clone();
    let text = door
        .post("/detokenize", &json!({"tokens": prompt}))
        .await
        .json();
    let text = text["prompt"].as_str().unwrap();
    for part in ["\"name\": \"weather\"", "I look.", "rain"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
