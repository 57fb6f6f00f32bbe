//! Streams that go on from the marks of another server: byte for byte as if it had not stopped.

use penstock_engine_client::testing::{Action, Script};
use penstock_wire::{Add, Finish, LogprobRow, Output};
use serde_json::{Value, json};

use crate::client::{Reply, exchange, request};
use crate::door::{Door, bytes_as_tokens, send};

const MARK: &str = ":resume ";
/// Headers of every request: two servers would give two ids.
const HEADERS: &str = "x-request-id: r-1\r\nx-penstock-resumable: 1\r\n";

/// Steps of one to three tokens, from where the request is; the scores tell tokens apart.
fn steps(text: &'static str, add: &Add) -> Vec<Action> {
    let ids = bytes_as_tokens(text);
    let scored = add.request.sampling.logprobs.is_some();
    let row = |id: &u32| LogprobRow {
        logprob: -(*id as f32),
        rank: 1,
        alternatives: Vec::new(),
    };
    let mut at = 0;
    let mut actions = Vec::new();
    for size in [1, 2, 1, 3].into_iter().cycle() {
        let step = &ids[at.min(ids.len())..(at + size).min(ids.len())];
        let last = at + size >= ids.len();
        if at >= add.request.resumed as usize {
            actions.push(Action::Send(Output {
                tokens: step.to_vec(),
                logprobs: step.iter().filter(|_| scored).map(row).collect(),
                finish: if last { Finish::Length } else { Finish::None },
                ..Output::default()
            }));
        }
        at += size;
        if last {
            return actions;
        }
    }
    actions
}

async fn ask(door: &Door, path: &str, body: &str) -> Reply {
    exchange(
        door.address,
        &request("POST", path, HEADERS, body.as_bytes()),
    )
    .await
}

/// What clients see before the first mark, and after each one; and the marks.
fn cut(text: &str) -> (Vec<String>, Vec<String>) {
    let mut parts = text.split(MARK);
    let (mut events, mut marks) = (vec![parts.next().unwrap().to_owned()], Vec::new());
    for part in parts {
        let (mark, rest) = part.split_once("\n\n").unwrap();
        marks.push(mark.to_owned());
        events.push(rest.to_owned());
    }
    (events, marks)
}

/// Breaks a stream off behind every mark, and looks at what another server makes of the rest.
async fn check(path: &str, body: Value, text: &'static str, least: usize) {
    let first = Door::open(move |add| steps(text, add)).await;
    let second = Door::open(move |add| steps(text, add)).await;
    let mut body = body;
    body["stream"] = true.into();
    let body = body.to_string();
    let whole = ask(&first, path, &body).await;
    assert_eq!(whole.header("x-penstock-resumable"), Some("1"));
    let (events, marks) = cut(whole.text());
    assert!(marks.len() > least, "{}", whole.text());
    assert_eq!(events[0], "");
    for known in 1..=marks.len() {
        let resume = marks[..known].join(",");
        let again = format!("{{\"resume\":[{resume}],{}", &body[1..]);
        let rest = ask(&second, path, &again).await;
        assert_eq!(rest.status, 200, "{}", rest.text());
        let (more, new) = cut(rest.text());
        assert_eq!(more.concat(), events[known..].concat(), "{path} {resume}");
        assert_eq!(new, marks[known..]);
    }
}

fn hi() -> Value {
    json!({"model": "tiny", "max_tokens": 200, "messages": [{"role": "user", "content": "hi"}]})
}

fn with(mut body: Value, more: Value) -> Value {
    let members = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(members);
    body
}

const CALLS: &str = "Hé — <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"a b\"}}\n\
                     </tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n\
                     </tool_call>";

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"x": {}}});
    json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}])
}

#[tokio::test]
async fn completions_go_on() {
    let path = "/v1/completions";
    let body =
        json!({"prompt": "hi", "max_tokens": 100, "stream_options": {"include_usage": true}});
    check(path, body.clone(), "Hé 🙂 there, all of you", 12).await;
    let scored = with(
        body.clone(),
        json!({"logprobs": 0, "return_token_ids": true}),
    );
    check(path, scored, "Hé 🙂 there", 5).await;
    let stopped = with(body, json!({"stop": ["re, al", "zz"], "echo": true}));
    check(path, stopped, "Hé there, az all of you", 8).await;
}

#[tokio::test]
async fn chats_go_on() {
    let path = "/v1/chat/completions";
    let usage = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    check(path, with(hi(), usage), "Hé 🙂 there", 5).await;
    let scored = with(
        hi(),
        json!({"logprobs": true, "top_logprobs": 0, "stop": ["you"]}),
    );
    check(path, scored, "Hé there, yo all of you", 8).await;
    check(path, with(hi(), json!({"tools": tools()})), CALLS, 30).await;
}

#[tokio::test]
async fn responses_and_messages_go_on() {
    let input = json!({"model": "tiny", "input": "hi"});
    check("/v1/responses", input.clone(), "Hé 🙂 there", 5).await;
    let parameters = json!({"type": "object", "properties": {"x": {}}});
    let tool = json!([{"type": "function", "name": "f", "parameters": parameters}]);
    check(
        "/v1/responses",
        with(input, json!({"tools": tool})),
        CALLS,
        30,
    )
    .await;
    let schema = json!({"type": "object", "properties": {"x": {}}});
    let tool = json!([{"name": "f", "input_schema": schema}]);
    check(
        "/v1/messages",
        with(hi(), json!({"tools": tool})),
        CALLS,
        30,
    )
    .await;
}

#[tokio::test]
async fn the_engine_gets_the_output_so_far_with_the_seed_of_the_first_server() {
    let mut door = Door::open(|add| steps("abcdef", add)).await;
    let body = r#""prompt":"hi","stream":true,"max_tokens":6,"min_tokens":2}"#;
    let resume = r#"[{"created":7,"seed":9,"calls":1},[97],[98,99]]"#;
    let reply = ask(
        &door,
        "/v1/completions",
        &format!("{{\"resume\":{resume},{body}"),
    )
    .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let log = door.fake.wait_log(|log| log.adds.len() == 1).await;
    let request = &log.adds[0].request;
    assert_eq!(request.prompt, bytes_as_tokens("hiabc"));
    assert_eq!((request.resumed, request.max_tokens), (3, 6));
    assert_eq!(request.sampling.seed, 9);
    assert_eq!(request.sampling.suppressed_until, 4);
}

#[tokio::test]
async fn a_failure_is_marked_and_what_cannot_go_on_has_no_marks() {
    let dies = |_: &Add| vec![send(&[97], Finish::None), Action::Die];
    let door = Door::open_with(json!({}), Script::new(dies)).await;
    let reply = ask(&door, "/v1/completions", r#"{"prompt":"x","stream":true}"#).await;
    let (events, marks) = cut(reply.text());
    assert_eq!(marks.len(), 3, "{}", reply.text());
    assert_eq!(marks[2], "\"failed\"");
    assert!(events[3].contains("The engine failed"), "{}", events[3]);

    let door = Door::saying("abc").await;
    let scored = r#"{"model":"tiny","input":"x","stream":true,
        "include":["message.output_text.logprobs"]}"#;
    for (path, body) in [
        ("/v1/completions", r#"{"prompt":"x","stream":true,"n":2}"#),
        ("/v1/completions", r#"{"prompt":["x","y"],"stream":true}"#),
        ("/v1/completions", r#"{"prompt":"x"}"#),
        ("/v1/responses", scored),
    ] {
        let reply = ask(&door, path, body).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("x-penstock-resumable"), None);
        assert!(!reply.text().contains(MARK));
    }
    let unasked = door.complete(&json!({"prompt": "x", "stream": true})).await;
    assert!(!unasked.text().contains(MARK));
}

#[tokio::test]
async fn what_no_server_wrote_is_refused() {
    let door = Door::saying("abc").await;
    let origin = r#"{"created":7,"seed":9,"calls":1}"#;
    for (resume, body) in [
        ("[]".to_owned(), r#""stream":true"#),
        (format!("[{origin}]"), r#""stream":false"#),
        (format!("[{origin}]"), r#""stream":true,"n":2"#),
        (
            format!("[{origin},[97,98]]"),
            r#""stream":true,"max_tokens":2"#,
        ),
        (format!("[{origin},[97]]"), r#""stream":true,"stop":"a""#),
        (format!("[{origin},[4000000000]]"), r#""stream":true"#),
    ] {
        let body = format!("{{\"resume\":{resume},\"prompt\":\"x\",{body}}}");
        let reply = ask(&door, "/v1/completions", &body).await;
        let (status, error) = reply.error();
        assert_eq!(
            (status, error["param"].as_str()),
            (400, Some("resume")),
            "{body}"
        );
    }
}

/// The tokens of another server would have followed the grammar.
#[tokio::test]
async fn tokens_that_the_grammar_forbids_are_refused() {
    let door = Door::open(|add| steps("aab", add)).await;
    let asked = |text: &str| {
        let origin = json!({"created": 1, "seed": 2, "calls": 3});
        json!({"prompt": "x", "max_tokens": 9, "stream": true, "regex": "a+b",
            "resume": [origin, bytes_as_tokens(text)]})
        .to_string()
    };
    let right = ask(&door, "/v1/completions", &asked("a")).await;
    assert_eq!(right.status, 200, "{}", right.text());
    let (status, error) = ask(&door, "/v1/completions", &asked("c")).await.error();
    assert_eq!((status, &error["param"]), (400, &json!("resume")));
    assert_eq!(error["message"], "resume: regex forbids its tokens.");
}
