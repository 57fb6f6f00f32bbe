//! Response bodies: usage, token ids, log-probabilities, echo; and what reaches the engine.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_engine_client::testing::{Action, Script, tokens};
use penstock_wire::{Finish, LogprobRow, Output};
use serde_json::{Value, json};

use crate::door::{Door, send};

fn row(logprob: f32, alternatives: &[(u32, f32)]) -> LogprobRow {
    LogprobRow {
        logprob,
        rank: 1,
        alternatives: alternatives.to_vec(),
    }
}

/// `a` then half an `é`, with alternatives, and rows for a prompt of three tokens.
fn scored(_: &penstock_wire::Add) -> Vec<Action> {
    let first = Output {
        tokens: vec![97],
        logprobs: vec![row(-0.5, &[(97, -0.5), (98, -1.5)])],
        prompt_logprobs: vec![row(-2.5, &[(99, -0.125)]), row(f32::NEG_INFINITY, &[])],
        ..Output::default()
    };
    let second = Output {
        tokens: vec![0xC3],
        logprobs: vec![row(-3.0, &[(98, -0.25)])],
        finish: Finish::Length,
        ..Output::default()
    };
    vec![Action::Send(first), Action::Send(second)]
}

#[tokio::test]
async fn a_whole_chat_response() {
    let door = Door::open(|_| {
        let first = Output {
            tokens: vec![256],
            cached_tokens: 16,
            ..Output::default()
        };
        vec![Action::Send(first), send(&[b'y'.into()], Finish::Length)]
    })
    .await;
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}],
        "return_token_ids": true});
    let reply = door.chat(&body).await;
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let mut json = reply.json();
    assert!(json["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(json["created"].as_u64().unwrap() > 1_600_000_000);
    assert_eq!(json["prompt_token_ids"][0], 257);
    for key in ["id", "created", "prompt_token_ids"] {
        json.as_object_mut().unwrap().remove(key);
    }
    let expected = json!({
        "object": "chat.completion", "model": "tiny",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hey"},
        "logprobs": null,
                     "finish_reason": "length", "stop_reason": null, "token_ids": [256, 121]}],
        "usage": {"prompt_tokens": 21, "completion_tokens": 2, "total_tokens": 23,
                  "prompt_tokens_details": {"cached_tokens": 16},
                  "completion_tokens_details": {"reasoning_tokens": 0}},
    });
    assert_eq!(json, expected);
}

#[tokio::test]
async fn chat_logprobs() {
    let door = Door::open(scored).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true,
        "top_logprobs": 2});
    let reply = door.chat(&body).await.json();
    let expected = json!([
        {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "b", "logprob": -1.5,
            "bytes": [98]}]},
        {"token": "\u{FFFD}", "logprob": -3.0, "bytes": [195], "top_logprobs": [
            {"token": "b", "logprob": -0.25, "bytes": [98]}]},
    ]);
    assert_eq!(
        reply["choices"][0]["logprobs"],
        json!({"content": expected})
    );
}

#[tokio::test]
async fn completion_logprobs_with_echo() {
    let door = Door::open(scored).await;
    let body = json!({"prompt": "xyz", "logprobs": 2, "echo": true, "max_tokens": 2});
    let reply = door.complete(&body).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(choice["text"], "xyza");
    let expected = json!({
        "text_offset": [0, 1, 2, 3, 4],
        "token_logprobs": [null, -2.5, -9999.0, -0.5, -3.0],
        "tokens": ["x", "y", "z", "a", "bytes:\\xc3"],
        "top_logprobs": [null, {"c": -0.125, "y": -2.5}, {"z": -9999.0}, {"a": -0.5, "b": -1.5},
                         {"b": -0.25, "bytes:\\xc3": -3.0}],
    });
    assert_eq!(choice["logprobs"], expected);
    let add = &door.fake.log().adds[0].request;
    assert_eq!(
        (
            add.sampling.logprobs,
            add.prompt_logprobs,
            add.skip_prefix_cache
        ),
        (Some(2), Some(2), true)
    );
}

#[tokio::test]
async fn streamed_echo_puts_the_prompt_into_the_first_chunk() {
    let door = Door::open(scored).await;
    let body = json!({"prompt": [120, 121, 122], "logprobs": 0, "echo": true, "stream": true,
        "return_token_ids": true});
    let events = door.complete(&body).await.events();
    let choice = |i: usize| &events[i]["choices"][0];
    assert_eq!(choice(0)["text"], "xyza");
    assert_eq!(choice(0)["logprobs"]["tokens"], json!(["x", "y", "z", "a"]));
    assert_eq!(
        (&choice(0)["prompt_token_ids"], &choice(0)["token_ids"]),
        (&json!([120, 121, 122]), &json!([97]))
    );
    assert_eq!(choice(1)["logprobs"]["text_offset"], json!([4]));
    assert_eq!(choice(1).get("prompt_token_ids"), None);
}

#[tokio::test]
async fn echo_without_output_scores_the_prompt_only() {
    let door = Door::open(scored).await;
    let body = json!({"prompt": "xyz", "logprobs": 1, "echo": true, "max_tokens": 0});
    let reply = door.complete(&body).await.json();
    let choice = &reply["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("xyz"), &json!("length"))
    );
    assert_eq!(
        choice["logprobs"]["token_logprobs"],
        json!([null, -2.5, -9999.0])
    );
    assert_eq!(reply["usage"]["completion_tokens"], 0);
    assert_eq!(door.fake.log().adds[0].request.max_tokens, 1);
}

#[tokio::test]
async fn a_list_of_prompts_gives_choices_in_order() {
    let door = Door::open(|add| {
        let id = add.request.prompt[0];
        vec![
            Action::Wait(Duration::from_millis(u64::from(110 - id) * 5)),
            send(&[id], Finish::Length),
        ]
    })
    .await;
    let reply = door
        .complete(&json!({"prompt": ["a", "b", "c"], "echo": true}))
        .await
        .json();
    let texts: Vec<&Value> = reply["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| &c["text"])
        .collect();
    assert_eq!(texts, ["aa", "bb", "cc"]);
    assert_eq!(reply["usage"]["total_tokens"], 6);
}

#[tokio::test]
async fn parameters_reach_the_engine() {
    let script = Script::new(|_| tokens(&[97], Duration::ZERO));
    let door = Door::open_with(json!({"max_model_len": 100}), script).await;
    let body = json!({
        "prompt": "hex", "max_tokens": 9, "min_tokens": 2, "temperature": 0.25, "top_p": 0.5,
        "top_k": -1, "seed": -1,
        "ignore_eos": true, "stop_token_ids": [5], "cache_salt": "s", "logprobs": 3,
    });
    assert_eq!(door.complete(&body).await.status, 200);
    assert_eq!(door.complete(&json!({"prompt": "x"})).await.status, 200);
    assert_eq!(
        door.complete(&json!({"prompt": "x", "max_tokens": null}))
            .await
            .status,
        200
    );
    assert_eq!(
        door.chat(&json!({"messages": [{"role": "user", "content": "hi"}]}))
            .await
            .status,
        200
    );
    let adds: Vec<_> = door
        .fake
        .log()
        .adds
        .into_iter()
        .map(|add| add.request)
        .collect();
    let first = &adds[0];
    assert_eq!(first.prompt, [256, 120]);
    assert_eq!(
        (first.max_tokens, first.min_tokens, first.sampling.seed),
        (9, 2, u64::MAX)
    );
    assert_eq!(
        (
            first.sampling.temperature,
            first.sampling.top_p,
            first.sampling.top_k
        ),
        (0.25, 0.5, 0)
    );
    assert_eq!(
        (first.sampling.logprobs, first.prompt_logprobs),
        (Some(3), None)
    );
    assert!(first.ignore_eos && !first.skip_prefix_cache);
    assert_eq!(
        (first.stop_token_ids.as_slice(), first.cache_salt.as_slice()),
        (&[5][..], &b"s"[..])
    );
    assert_eq!(
        (
            adds[1].sampling.temperature,
            adds[1].sampling.top_k,
            adds[1].sampling.top_p
        ),
        (0.5, 7, 1.0)
    );
    let limits: Vec<u32> = adds[1..].iter().map(|add| add.max_tokens).collect();
    assert_eq!(limits, [16, 99, 79]);
    assert_ne!(adds[1].sampling.seed, adds[2].sampling.seed);
}

#[tokio::test]
async fn a_seed_of_the_server_is_for_requests_that_bring_none() {
    let script = Script::new(|_| tokens(&[97], Duration::ZERO));
    let defaults = json!({"generation_defaults": {"seed": 17}});
    let door = Door::open_with(defaults, script).await;
    for body in [
        json!({"prompt": "a"}),
        json!({"prompt": "b"}),
        json!({"prompt": "a", "seed": 5}),
    ] {
        assert_eq!(door.complete(&body).await.status, 200);
    }
    let adds = door.fake.log().adds;
    let seeds: Vec<_> = adds.iter().map(|add| add.request.sampling.seed).collect();
    assert_eq!(seeds, [17, 17, 5]);
}

#[tokio::test]
async fn a_chat_prompt_has_scores() {
    let door = Door::open(scored).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 1,
        "logprobs": true, "return_tokens_as_token_ids": true});
    let json = door.chat(&body).await.json();
    let scores = json["prompt_logprobs"].as_array().unwrap();
    assert_eq!(scores[0], Value::Null);
    assert_eq!(scores[1]["99"]["logprob"], -0.125);
    assert_eq!(scores[1]["99"]["rank"], 1);
    assert_eq!(scores[1]["99"]["decoded_token"], "c");
    assert_eq!(scores[1].as_object().unwrap().len(), 2);
    let tokens = &json["choices"][0]["logprobs"]["content"];
    assert_eq!(tokens[0]["token"], "token_id:97");
    let streamed = json!({"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 1,
        "stream": true});
    assert_eq!(door.chat(&streamed).await.status, 400);
}

#[tokio::test]
async fn a_completion_has_scores_of_its_prompt() {
    let door = Door::open(scored).await;
    let body = json!({"prompt": "xyz", "prompt_logprobs": 1, "return_token_ids": true});
    let reply = door.complete(&body).await;
    let choice = &reply.json()["choices"][0];
    let expected = json!([
        null,
        {"121": {"logprob": -2.5, "rank": 1, "decoded_token": "y"},
         "99": {"logprob": -0.125, "rank": 1, "decoded_token": "c"}},
        {"122": {"logprob": -9999.0, "rank": 1, "decoded_token": "z"}},
    ]);
    assert_eq!(choice["prompt_logprobs"], expected);
    assert!(reply.text().contains(r#"{"121":{"#), "the own token first");
    assert_eq!(choice["prompt_token_ids"], json!([120, 121, 122]));
    assert_eq!(
        (&choice["logprobs"], &choice["text"]),
        (&Value::Null, &json!("a"))
    );
    let add = &door.fake.log().adds[0].request;
    assert_eq!(
        (
            add.sampling.logprobs,
            add.prompt_logprobs,
            add.skip_prefix_cache
        ),
        (None, Some(1), true)
    );
    let streamed = json!({"prompt": "xyz", "prompt_logprobs": 1, "stream": true});
    let (status, error) = door.complete(&streamed).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("prompt_logprobs")));
}

#[tokio::test]
async fn echoed_tokens_and_scores_of_the_prompt_have_their_own_numbers_of_alternatives() {
    let door = Door::open(scored).await;
    for (echoed, scored) in [(0, 1), (1, 0)] {
        let body = json!({"prompt": "xyz", "echo": true, "logprobs": echoed,
            "prompt_logprobs": scored});
        let reply = door.complete(&body).await.json();
        let choice = &reply["choices"][0];
        let own = json!({"y": -2.5});
        let both = json!({"c": -0.125, "y": -2.5});
        let row = &choice["logprobs"]["top_logprobs"][1];
        assert_eq!(row, if echoed == 0 { &own } else { &both });
        let row = choice["prompt_logprobs"][1].as_object().unwrap();
        assert_eq!(row.len(), 1 + scored);
        assert!(row.contains_key("121"));
    }
    let adds = door.fake.log().adds;
    let wanted: Vec<_> = adds.iter().map(|add| add.request.prompt_logprobs).collect();
    assert_eq!(wanted, [Some(1), Some(1)]);
}

#[tokio::test]
async fn choices_of_a_prompt_share_its_scores() {
    let door = Door::open(|add| {
        let wanted = add.request.prompt_logprobs;
        vec![Action::Send(Output {
            tokens: vec![97],
            prompt_logprobs: wanted.map(|_| row(-2.5, &[])).into_iter().collect(),
            finish: Finish::Length,
            ..Output::default()
        })]
    })
    .await;
    let body = json!({"prompt": ["xy", "ab"], "n": 2, "prompt_logprobs": 0, "echo": true,
        "logprobs": 0, "max_tokens": 0});
    let reply = door.complete(&body).await.json();
    for (index, (token, name)) in [("121", "y"), ("121", "y"), ("98", "b"), ("98", "b")]
        .into_iter()
        .enumerate()
    {
        let choice = &reply["choices"][index];
        assert_eq!(choice["prompt_logprobs"][1][token]["logprob"], -2.5);
        let echoed = json!([null, {name: -2.5}]);
        assert_eq!(choice["logprobs"]["top_logprobs"], echoed);
    }
    let requests = || door.fake.log().adds.into_iter().map(|add| add.request);
    let scored: Vec<_> = requests().map(|r| r.prompt_logprobs.is_some()).collect();
    assert_eq!(scored, [true, false, true, false]);
    let computed: Vec<_> = requests().map(|r| r.skip_prefix_cache).collect();
    assert_eq!(computed, scored);
}

#[tokio::test]
async fn log_probabilities_of_a_completion_name_tokens_by_id() {
    let door = Door::open(scored).await;
    let mut body = json!({"prompt": "xyz", "logprobs": 2, "echo": true,
        "return_tokens_as_token_ids": true});
    let whole = door.complete(&body).await.json()["choices"][0]["logprobs"].clone();
    let expected = json!({
        "text_offset": [0, 1, 2, 3, 4],
        "token_logprobs": [null, -2.5, -9999.0, -0.5, -3.0],
        "tokens": ["token_id:120", "token_id:121", "token_id:122", "token_id:97",
                   "token_id:195"],
        "top_logprobs": [null, {"token_id:99": -0.125, "token_id:121": -2.5},
                         {"token_id:122": -9999.0},
                         {"token_id:97": -0.5, "token_id:98": -1.5},
                         {"token_id:98": -0.25, "token_id:195": -3.0}],
    });
    assert_eq!(whole, expected);
    body["stream"] = true.into();
    let events = door.complete(&body).await.events();
    let streamed = |member: &str| -> Vec<Value> {
        let lists = events.iter().map(|e| &e["choices"][0]["logprobs"][member]);
        lists
            .flat_map(|list| list.as_array().unwrap().clone())
            .collect()
    };
    for member in ["tokens", "top_logprobs", "text_offset"] {
        assert_eq!(json!(streamed(member)), expected[member]);
    }
}

#[tokio::test]
async fn a_template_of_the_request_is_run_where_the_operator_trusts_it() {
    let trusting = json!({"trust_request_chat_template": true});
    let prompts = Arc::new(Mutex::new(Vec::new()));
    let seen = prompts.clone();
    let script = Script::new(move |add| {
        seen.lock().unwrap().push(add.request.prompt.len());
        vec![send(&[b'x'.into()], Finish::Length)]
    });
    let door = Door::open_with(trusting, script).await;
    let body = |template: &str| {
        json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1,
            "chat_template": template, "chat_template_kwargs": {"style": "abc"}})
    };
    let reply = door
        .chat(&body("{{ messages[0].content }}{{ style }}"))
        .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(*prompts.lock().unwrap(), [5]);
    let loops = "{% for a in range(100000) %}".repeat(3);
    let ends = "{% endfor %}".repeat(3);
    for (template, reason) in [
        ("{% if %}".to_owned(), "does not parse"),
        (format!("{loops}{ends}"), "too many steps"),
        (format!("{loops}{{{{ 'a' * 10000 }}}}{ends}"), "32 MiB"),
        ("{{ 'a' * 10**9 }}".to_owned(), "too many steps"),
        ("{{ raise_exception('not so') }}".to_owned(), "not so"),
    ] {
        let (status, error) = door.chat(&body(&template)).await.error();
        let message = error["message"].as_str().unwrap();
        assert!(
            status == 400 && message.contains(reason),
            "{template}: {error}"
        );
    }
}
