//! Every way to be refused, in OpenAI's form.

use std::time::Duration;

use penstock_engine_client::testing::{Action, Script, reject, tokens};
use penstock_wire::{Finish, Output};
use serde_json::{Value, json};

use crate::client::{exchange, open, request};
use crate::door::{Door, endless};

fn chat_with(field: &str, value: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
    body[field] = value;
    body
}

#[tokio::test]
async fn bodies_that_are_not_requests() {
    let door = Door::saying("x").await;
    let deep = format!(
        "{{\"messages\":{}{}}}",
        "[".repeat(40_000),
        "]".repeat(40_000)
    );
    for body in [
        &b""[..],
        b"{",
        b"[]",
        b"null",
        b"\"x\"",
        b"{\"prompt\":\"\xff\"}",
        b"{\"prompt\":1e999}",
        deep.as_bytes(),
    ] {
        for path in [
            "/v1/completions",
            "/v1/chat/completions",
            "/tokenize",
            "/detokenize",
        ] {
            let (status, error) = door.post_bytes(path, body).await.error();
            assert_eq!(
                (status, &error["type"]),
                (400, &json!("invalid_request_error")),
                "{path} {body:?}"
            );
        }
    }
}

#[tokio::test]
async fn fields_are_refused_by_name() {
    let door = Door::saying("x").await;
    for (field, value) in [
        ("temperature", json!(-1)),
        ("n", json!(0)),
        ("n", json!("many")),
        ("min_p", json!(1.5)),
        ("repetition_penalty", json!(0)),
        ("frequency_penalty", json!(-2.5)),
        ("logit_bias", json!({"x": 1})),
        ("logit_bias", json!({"3": 101})),
        ("logit_bias", json!({"99999999": 1})),
        ("allowed_token_ids", json!([])),
        ("allowed_token_ids", json!([99_999_999])),
        ("bad_words", json!([""])),
        ("truncate_prompt_tokens", json!(-2)),
        ("best_of", json!(2)),
        ("tools", json!([{"type": "function"}])),
        ("response_format", json!({"type": "xml"})),
        ("guided_json", json!(5)),
        ("chat_template", json!("x")),
        ("stop", json!(vec!["a"; 17])),
        ("stop_token_ids", json!([99_999_999])),
        ("messages", json!([{"role": "forbidden", "content": "x"}])),
    ] {
        let (status, error) = door.chat(&chat_with(field, value)).await.error();
        assert_eq!((status, &error["param"]), (400, &json!(field)), "{error}");
    }
    assert_eq!(
        door.chat(&chat_with("brand_new_field", json!({"a": 1})))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn text_for_a_server_without_a_tokenizer() {
    let textless = json!({"skip_tokenizer_init": true});
    let script = Script::new(|_| tokens(&[97], Duration::ZERO));
    let door = Door::open_with(textless, script).await;
    assert_eq!(door.complete(&json!({"prompt": [97]})).await.status, 200);
    for (path, field, body) in [
        ("/v1/completions", "prompt", json!({"prompt": "hi"})),
        ("/v1/completions", "prompt", json!({"prompt": ["hi"]})),
        (
            "/v1/completions",
            "stop",
            json!({"prompt": [97], "stop": "x"}),
        ),
        (
            "/v1/completions",
            "bad_words",
            json!({"prompt": [97], "bad_words": ["x"]}),
        ),
        (
            "/v1/completions",
            "guided_regex",
            json!({"prompt": [97], "guided_regex": "x"}),
        ),
        ("/tokenize", "prompt", json!({"prompt": "hi"})),
        ("/v1/chat/completions", "messages", chat_with("n", json!(1))),
    ] {
        let (status, error) = door.post(path, &body).await.error();
        assert_eq!((status, &error["param"]), (400, &json!(field)), "{error}");
        let message = error["message"].as_str().unwrap();
        let reason = format!(
            "{field} needs a tokenizer, and this server has none \
            (--skip-tokenizer-init): send "
        );
        assert!(message.starts_with(&reason), "{message}");
    }
}

#[tokio::test]
async fn unknown_models_and_paths_and_methods() {
    let door = Door::saying("x").await;
    let (status, error) = door.chat(&chat_with("model", json!("gpt-9"))).await.error();
    assert_eq!(
        (status, &error["code"], &error["param"]),
        (404, &json!("model_not_found"), &json!("model"))
    );
    assert_eq!(
        door.chat(&chat_with("model", json!("alias"))).await.json()["model"],
        "alias"
    );
    let (status, error) = door.get("/v1/nothing").await.error();
    assert_eq!((status, &error["code"]), (404, &json!("not_found")));
    let reply = door.get("/v1/completions").await;
    assert_eq!(reply.error().0, 405);
    assert_eq!(reply.header("allow"), Some("POST"));
}

#[tokio::test]
async fn bodies_over_the_limit() {
    let door = Door::saying("x").await;
    let body = json!({"prompt": "x".repeat(150_000)});
    let (status, error) = door.complete(&body).await.error();
    assert_eq!((status, &error["code"]), (413, &json!("request_too_large")));
}

#[tokio::test]
async fn prompts_that_do_not_fit_the_context() {
    let door = Door::open_with(
        json!({"max_model_len": 10}),
        Script::new(|_| tokens(&[97], Duration::ZERO)),
    )
    .await;
    for body in [
        json!({"prompt": "a".repeat(11)}),
        json!({"prompt": vec![97; 10]}),
        json!({"prompt": vec![97; 5], "max_tokens": 6}),
        json!({"prompt": "a".repeat(9000)}),
    ] {
        let (status, error) = door.complete(&body).await.error();
        assert_eq!(
            (status, &error["code"]),
            (400, &json!("context_length_exceeded"))
        );
        let message = error["message"].as_str().unwrap();
        assert!(
            message.starts_with("This model's maximum context length is 10 tokens"),
            "{message}"
        );
    }
    let (status, error) = door.chat(&chat_with("max_tokens", json!(5))).await.error();
    assert_eq!(
        (status, &error["code"]),
        (400, &json!("context_length_exceeded"))
    );
    assert_eq!(door.fake.log().adds.len(), 0);
    assert_eq!(
        door.complete(&json!({"prompt": [1, 2, 3, 4, 5], "max_tokens": 5}))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn prompts_that_are_not_tokens() {
    let door = Door::saying("x").await;
    for prompt in [json!(""), json!([49152]), json!([4_294_967_295u32])] {
        let (status, error) = door.complete(&json!({"prompt": prompt})).await.error();
        assert_eq!((status, &error["param"]), (400, &json!("prompt")));
    }
}

#[tokio::test]
async fn the_engines_refusals_have_a_status_of_their_own() {
    for stream in [false, true] {
        let door = Door::open(|_| reject()).await;
        let reply = door
            .complete(&json!({"prompt": "x", "stream": stream}))
            .await;
        assert_eq!(reply.header("retry-after"), Some("1"));
        assert_eq!(
            (reply.error().0, &reply.error().1["code"]),
            (503, &json!("queue_full"))
        );

        let fault = Output {
            finish: Finish::Error,
            error: Some("bad luck".into()),
            ..Output::default()
        };
        let door = Door::open(move |_| vec![Action::Send(fault.clone())]).await;
        let (status, error) = door
            .complete(&json!({"prompt": "x", "stream": stream}))
            .await
            .error();
        assert_eq!(status, 500);
        assert!(error["message"].as_str().unwrap().contains("bad luck"));

        let unfit = Output {
            finish: Finish::Unfit,
            error: Some("its grammar is too complex".into()),
            ..Output::default()
        };
        let door = Door::open(move |_| vec![Action::Send(unfit.clone())]).await;
        let (status, error) = door
            .complete(&json!({"prompt": "x", "stream": stream}))
            .await
            .error();
        assert_eq!(status, 400);
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains("too complex"));

        let door = Door::open(|_| vec![Action::Die]).await;
        let reply = door
            .complete(&json!({"prompt": "x", "stream": stream}))
            .await;
        assert_eq!(
            (reply.error().0, &reply.error().1["code"]),
            (503, &json!("engine_failed"))
        );
    }
}

#[tokio::test]
async fn a_full_house_is_503_with_retry_after() {
    let mut script = Script::new(|_| endless());
    script.ready.max_num_seqs = 1;
    let mut door = Door::open_with(json!({"max_queue": 1}), script).await;
    let body = json!({"prompt": "x", "stream": true, "max_tokens": 5000});
    let one = open(door.address, "/v1/completions", &body).await;
    let _two = open(door.address, "/v1/completions", &body).await;
    door.fake.wait_log(|log| log.adds.len() == 2).await;
    let reply = door.complete(&body).await;
    assert_eq!(
        (reply.error().0, &reply.error().1["code"]),
        (503, &json!("queue_full"))
    );
    assert_eq!(reply.header("retry-after"), Some("1"));
    let (status, error) = door
        .complete(&json!({"prompt": ["a", "b", "c"]}))
        .await
        .error();
    assert_eq!((status, &error["param"]), (400, &json!("prompt")));
    drop(one);
    door.fake.wait_log(|log| log.cancels.len() == 1).await;
    let _three = open(door.address, "/v1/completions", &body).await;
    door.fake.wait_log(|log| log.adds.len() == 3).await;
    let page = door.get("/metrics").await;
    let rejected =
        r#"vllm:admission_rejections_total{model_name="tiny",engine="0",reason="queue_full"} 1"#;
    assert!(page.text().contains(rejected));
}

#[tokio::test]
async fn a_wait_that_would_be_too_long_is_503() {
    let mut script = Script::new(|_| endless());
    script.ready.max_num_seqs = 1;
    let patch = json!({"max_queue": 100, "max_queue_wait_s": 0.2});
    let mut door = Door::open_with(patch, script).await;
    let body = json!({"prompt": "x", "stream": true, "max_tokens": 5000});
    let _runs = open(door.address, "/v1/completions", &body).await;
    let _waits = open(door.address, "/v1/completions", &body).await;
    door.fake.wait_log(|log| log.adds.len() == 2).await;
    // None has ended since the queue began, so the next one waits twice as long at least.
    tokio::time::sleep(Duration::from_millis(150)).await;
    let reply = door.complete(&body).await;
    assert_eq!(
        (reply.error().0, &reply.error().1["code"]),
        (503, &json!("queue_full"))
    );
    assert_eq!(reply.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn keys_are_asked_for_everywhere_but_at_probes() {
    let patch = json!({"api_keys": ["first-key", "second"]});
    let door = Door::open_with(patch, Script::new(|_| tokens(&[97], Duration::ZERO))).await;
    let status = async |headers: &str, path: &str| {
        exchange(door.address, &request("GET", path, headers, b""))
            .await
            .status
    };
    for path in ["/v1/models", "/version", "/nothing"] {
        assert_eq!(status("", path).await, 401, "{path}");
    }
    // Prometheus and autoscalers that were made for vLLM send no key.
    assert_eq!(status("", "/metrics").await, 200);
    for header in [
        "authorization: Bearer \r\n",
        "authorization: Bearer secon\r\n",
        "authorization: Basic second\r\n",
    ] {
        assert_eq!(status(header, "/v1/models").await, 401, "{header}");
    }
    for header in [
        "authorization: Bearer second\r\n",
        "Authorization: bearer first-key\r\n",
    ] {
        assert_eq!(status(header, "/v1/models").await, 200, "{header}");
    }
    assert_eq!(
        (status("", "/health").await, status("", "/ready").await),
        (200, 200)
    );
    let (_, error) = door.complete(&json!({"prompt": "x"})).await.error();
    assert_eq!(
        (&error["type"], &error["code"]),
        (&json!("authentication_error"), &json!("invalid_api_key"))
    );
}
