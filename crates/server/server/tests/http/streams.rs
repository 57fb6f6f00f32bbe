//! Streams, byte for byte.

use std::time::Duration;

use penstock_engine_client::testing::{Action, Script, tokens};
use penstock_wire::{Add, Finish, LogprobRow, Output};
use serde_json::{Value, json};

use crate::client::{exchange, open, read_until, request};
use crate::door::{Door, bytes_as_tokens, send};

/// Ids, times and model names change from run to run; everything else is pinned.
fn pinned(text: &str) -> String {
    let mut out = text.to_owned();
    for (from, to) in [("\"created\":", ","), ("\"id\":\"", "\"")] {
        let mut done = 0;
        while let Some(start) = out[done..].find(from).map(|i| done + i + from.len()) {
            let end = start + out[start..].find(to).unwrap();
            out.replace_range(start..end, "#");
            done = start;
        }
    }
    out
}

#[tokio::test]
async fn chat_stream_bytes() {
    let door = Door::saying("Hé").await;
    let body = json!({"model": "tiny", "messages": [{"role": "user", "content": "hi"}],
                      "stream": true, "stream_options": {"include_usage": true}});
    let reply = door.chat(&body).await;
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.header("content-type"),
        Some("text/event-stream; charset=utf-8")
    );
    let head = concat!(
        r##"data: {"id":"#","object":"chat.completion.chunk","created":#,"##,
        r##""model":"tiny","choices":["##
    );
    let expected = [
        r#"{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
        r#"{"index":0,"delta":{"content":"H"},"logprobs":null,"finish_reason":null}]}"#,
        r#"{"index":0,"delta":{"content":"é"},"logprobs":null,"finish_reason":"length"}]}"#,
        r#"],"usage":{"prompt_tokens":21,"completion_tokens":3,"total_tokens":24,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}"#,
    ];
    let expected: String = expected
        .iter()
        .map(|rest| format!("{head}{rest}\n\n"))
        .collect();
    assert_eq!(pinned(reply.text()), expected + "data: [DONE]\n\n");
}

#[tokio::test]
async fn completion_stream_bytes() {
    let door = Door::saying("ab").await;
    let reply = door
        .complete(&json!({"prompt": "hi", "stream": true}))
        .await;
    let head =
        r##"data: {"id":"#","object":"text_completion","created":#,"model":"tiny","choices":["##;
    let expected = [
        r#"{"index":0,"text":"a","logprobs":null,"finish_reason":null,"stop_reason":null}]}"#,
        r#"{"index":0,"text":"b","logprobs":null,"finish_reason":"length","stop_reason":null}]}"#,
    ];
    let expected: String = expected
        .iter()
        .map(|rest| format!("{head}{rest}\n\n"))
        .collect();
    assert_eq!(pinned(reply.text()), expected + "data: [DONE]\n\n");
}

#[tokio::test]
async fn the_first_chunk_waits_for_the_first_token() {
    let door = Door::open(|_| tokens(&bytes_as_tokens("abc"), Duration::from_millis(300))).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "stream": true});
    let began = std::time::Instant::now();
    let mut stream = open(door.address, "/v1/chat/completions", &body).await;
    let got = read_until(&mut stream, "\n\ndata: {").await;
    assert!(began.elapsed() >= Duration::from_millis(290));
    assert!(
        got.contains(r#""content":"a""#),
        "role and first token leave together: {got}"
    );
}

#[tokio::test]
async fn the_request_id_is_echoed_and_made_part_of_the_id() {
    let door = Door::saying("a").await;
    let body = br#"{"prompt":"x"}"#;
    let reply = exchange(
        door.address,
        &request("POST", "/v1/completions", "x-request-id: my-1\r\n", body),
    )
    .await;
    assert_eq!(reply.header("x-request-id"), Some("my-1"));
    assert_eq!(reply.json()["id"], "cmpl-my-1");
    let reply = exchange(
        door.address,
        &request("POST", "/v1/completions", "x-request-id: a b\"\r\n", body),
    )
    .await;
    assert_eq!(reply.header("x-request-id").map(str::len), Some(32));
}

#[tokio::test]
async fn several_prompts_interleave() {
    let door = Door::open(|add| {
        let id = add.request.prompt[0];
        (0..4)
            .flat_map(|i| {
                [
                    Action::Wait(Duration::from_millis(20)),
                    send(&[id], if i == 3 { Finish::Length } else { Finish::None }),
                ]
            })
            .collect()
    })
    .await;
    let body = json!({"prompt": [[97], [98], [99]], "stream": true,
        "stream_options": {"include_usage": true}});
    let events = door.complete(&body).await.events();
    let (usage, chunks) = events.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["prompt_tokens"], 3);
    assert_eq!(usage["usage"]["completion_tokens"], 12);
    for index in 0..3u8 {
        let own = chunks.iter().filter(|c| c["choices"][0]["index"] == index);
        let text: String = own
            .map(|c| c["choices"][0]["text"].as_str().unwrap())
            .collect();
        assert_eq!(text, char::from(b'a' + index).to_string().repeat(4));
    }
    let firsts: Vec<_> = chunks
        .iter()
        .take(3)
        .map(|c| c["choices"][0]["index"].as_u64().unwrap())
        .collect();
    assert!(
        firsts.contains(&0) && firsts.contains(&1) && firsts.contains(&2),
        "{firsts:?}"
    );
}

#[tokio::test]
async fn usage_on_every_chunk_when_asked() {
    let door = Door::open(|_| {
        let first = Output {
            tokens: vec![97],
            cached_tokens: 2,
            ..Output::default()
        };
        vec![Action::Send(first), send(&[98], Finish::Length)]
    })
    .await;
    let options = json!({"continuous_usage_stats": true, "include_usage": true});
    let body = json!({"prompt": [1, 2, 3], "stream": true, "stream_options": options});
    let events = door.complete(&body).await.events();
    let counts: Vec<_> = events
        .iter()
        .map(|e| e["usage"]["completion_tokens"].as_u64().unwrap())
        .collect();
    assert_eq!(counts, [1, 2, 2]);
    assert_eq!(
        events[0]["usage"]["prompt_tokens_details"]["cached_tokens"],
        2
    );
}

#[tokio::test]
async fn a_character_in_pieces_gives_no_half() {
    let door = Door::saying("😀!").await;
    let events = door
        .complete(&json!({"prompt": "x", "stream": true}))
        .await
        .events();
    let texts: Vec<_> = events
        .iter()
        .map(|e| e["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts.concat(), "😀!");
    assert!(texts.iter().all(|t| !t.contains('\u{FFFD}')), "{texts:?}");
}

#[tokio::test]
async fn an_unfinished_character_at_the_end_is_no_text() {
    let door = Door::open(|_| vec![send(&[0x61, 0xF0, 0x9F], Finish::Length)]).await;
    let (text, input) = (json!({"prompt": "x"}), json!({"input": "x"}));
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    let mut messages = chat.clone();
    messages["max_tokens"] = 3.into();
    for (path, body, whole, piece) in [
        (
            "/v1/completions",
            text,
            "/choices/0/text",
            "/choices/0/text",
        ),
        (
            "/v1/chat/completions",
            chat,
            "/choices/0/message/content",
            "/choices/0/delta/content",
        ),
        ("/v1/responses", input, "/output/0/content/0/text", "/delta"),
        ("/v1/messages", messages, "/content/0/text", "/delta/text"),
    ] {
        let reply = door.post(path, &body).await.json();
        assert_eq!(reply.pointer(whole), Some(&json!("a")), "{path}: {reply}");
        let mut body = body;
        body["stream"] = true.into();
        let reply = door.post(path, &body).await;
        let data = reply
            .text()
            .lines()
            .filter_map(|line| line.strip_prefix("data: {"));
        let events = data.map(|json| serde_json::from_str(&format!("{{{json}")).unwrap());
        let pieces =
            events.filter_map(|event: Value| Some(event.pointer(piece)?.as_str()?.to_owned()));
        assert_eq!(pieces.collect::<String>(), "a", "{path}");
    }
}

#[tokio::test]
async fn offsets_and_keys_of_parts_of_characters() {
    // a, 日 in three tokens, 本 in one and two, b
    let bytes = "a日本b".bytes().map(u32::from).collect::<Vec<_>>();
    let steps = move |_: &Add| {
        let row = |token: u32| LogprobRow {
            logprob: -1.0,
            rank: 1,
            alternatives: vec![(token, -1.0), (0xE6, -2.0), (0xE7, -3.0), (0x22, -4.0)],
        };
        let output = |(index, &token): (usize, &u32)| {
            Action::Send(Output {
                tokens: vec![token],
                logprobs: vec![row(token)],
                prompt_logprobs: if index == 0 {
                    vec![row(0xA9)]
                } else {
                    Vec::new()
                },
                finish: [Finish::None, Finish::Length][usize::from(index == 7)],
                ..Output::default()
            })
        };
        bytes.iter().enumerate().map(output).collect::<Vec<_>>()
    };
    let door = Door::open(steps).await;
    for echo in [false, true] {
        let body = json!({"prompt": "é", "logprobs": 4, "max_tokens": 8, "echo": echo});
        let reply = door.complete(&body).await.json();
        let scores = &reply["choices"][0]["logprobs"];
        let offsets = match echo {
            false => json!([0, 1, 1, 1, 2, 2, 2, 3]),
            true => json!([0, 0, 1, 2, 2, 2, 3, 3, 3, 4]),
        };
        assert_eq!(scores["text_offset"], offsets, "{reply}");
        let tokens = scores["tokens"].as_array().unwrap();
        let last = |at: usize| &tokens[tokens.len() - 8 + at];
        assert_eq!((last(0), last(1)), (&json!("a"), &json!("bytes:\\xe6")));
        let top = scores["top_logprobs"].as_array().unwrap();
        let keys: Vec<_> = top[top.len() - 1].as_object().unwrap().keys().collect();
        assert_eq!(keys, ["b", "bytes:\\xe6", "bytes:\\xe7", "\""]);
    }
}

#[tokio::test]
async fn stop_strings_end_the_stream_and_the_request() {
    let mut door = Door::open(|_| {
        bytes_as_tokens("one ENone END two")
            .iter()
            .map(|id| send(&[*id], Finish::None))
            .collect()
    })
    .await;
    let body = json!({"prompt": "x", "stream": true, "stop": ["END", "never"]});
    let reply = door.complete(&body).await;
    let events = reply.events();
    let text: String = events
        .iter()
        .map(|e| e["choices"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, "one ENone ");
    let last = &events.last().unwrap()["choices"][0];
    assert_eq!(
        (last["finish_reason"].as_str(), last["stop_reason"].as_str()),
        (Some("stop"), Some("END"))
    );
    door.fake.wait_log(|log| log.cancels.len() == 1).await;
}

#[tokio::test]
async fn stop_strings_do_not_count_before_min_tokens() {
    let door = Door::saying("xxaxxb").await;
    let reply = door
        .complete(&json!({"prompt": "x", "stop": "a", "min_tokens": 3}))
        .await;
    assert_eq!(reply.json()["choices"][0]["text"], "xxaxxb");
    let reply = door
        .complete(&json!({"prompt": "x", "stop": "b", "min_tokens": 3}))
        .await;
    assert_eq!(reply.json()["choices"][0]["text"], "xxaxx");
}

#[tokio::test]
async fn stop_tokens_have_no_text_and_are_named_unless_eos() {
    let answer = |_: &_| {
        let last = Output {
            tokens: vec![98, 258],
            finish: Finish::Stop,
            stop_token: Some(258),
            ..Output::default()
        };
        vec![send(&[97], Finish::None), Action::Send(last)]
    };
    let door = Door::open_with(json!({}), Script::new(answer)).await;
    let reply = door.complete(&json!({"prompt": "x"})).await.json();
    assert_eq!(reply["choices"][0]["text"], "ab");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    assert_eq!(reply["choices"][0]["stop_reason"], json!(null));
    assert_eq!(reply["usage"]["completion_tokens"], 3);
    let body = json!({"prompt": "x", "stop_token_ids": [258], "skip_special_tokens": false});
    let reply = door.complete(&body).await.json();
    assert_eq!(reply["choices"][0]["text"], "ab");
    assert_eq!(reply["choices"][0]["stop_reason"], 258);
}
