//! `/v1/kv` with a scripted engine: keys, what reaches the engine, what comes of its replies.

use std::sync::Arc;
use std::time::Duration;

use penstock_engine_client::testing::{Action, Script, tokens};
use penstock_wire::{KvOrder, KvOutcome, KvPrefix};
use serde_json::json;

use crate::door::Door;

const PATHS: [(&str, &str); 4] = [
    ("GET", "/v1/kv"),
    ("DELETE", "/v1/kv"),
    ("POST", "/v1/kv/pin"),
    ("POST", "/v1/kv/unpin"),
];

fn script() -> Script {
    let obey = |order: &KvOrder| match order {
        KvOrder::Report => Some((KvOutcome::Done, r#"{"object":"kv.report"}"#.to_owned())),
        KvOrder::Unpin(_) => Some((KvOutcome::Refused, "that is not pinned".to_owned())),
        KvOrder::ClearSalt(_) => Some((KvOutcome::Failed, "disk:/kv: I/O error".to_owned())),
        _ => Some((KvOutcome::Done, r#"{"blocks":3}"#.to_owned())),
    };
    Script {
        obey: Arc::new(obey),
        ..Script::new(|_| tokens(&[97], Duration::ZERO))
    }
}

async fn admin_door() -> Door {
    let patch = json!({"admin_api_key": "root-key", "api_keys": ["user-key"]});
    Door::open_with(patch, script()).await
}

fn prefix(text: &str, salt: &str) -> KvPrefix {
    KvPrefix {
        tokens: text.bytes().map(u32::from).collect(),
        cache_salt: salt.as_bytes().to_vec(),
    }
}

#[tokio::test]
async fn without_an_admin_key_nobody_looks_after_the_cache() {
    let door = Door::open_with(json!({"api_keys": ["user-key"]}), script()).await;
    for (method, path) in PATHS {
        for key in ["user-key", "", "anything"] {
            let (status, error) = door.keyed(method, path, key, "").await.error();
            assert_eq!(
                (status, &error["code"], &error["type"]),
                (
                    403,
                    &json!("admin_key_not_configured"),
                    &json!("permission_error")
                ),
                "{method} {path}"
            );
            assert!(
                error["message"]
                    .as_str()
                    .unwrap()
                    .contains("--admin-api-key")
            );
        }
    }
    assert!(door.fake.log().orders.is_empty());
}

#[tokio::test]
async fn the_admin_key_and_no_other_opens_the_cache() {
    let door = admin_door().await;
    for (method, path) in PATHS {
        for key in ["user-key", "", "root-ke", "root-key2"] {
            let reply = door.keyed(method, path, key, "").await;
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
            let (status, error) = reply.error();
            assert_eq!(
                (status, &error["code"]),
                (401, &json!("invalid_api_key")),
                "{method} {path} {key}"
            );
        }
    }
    assert!(door.fake.log().orders.is_empty());
    let reply = door.keyed("GET", "/v1/kv", "root-key", "").await;
    assert_eq!(
        (reply.status, reply.json()),
        (200, json!({"object": "kv.report"}))
    );
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(
        door.keyed("GET", "/v1/models", "root-key", "").await.status,
        401
    );
    assert_eq!(
        door.keyed("POST", "/v1/kv", "root-key", "").await.error().0,
        405
    );
    assert_eq!(
        door.keyed("GET", "/v1/kv/x", "root-key", "")
            .await
            .error()
            .0,
        404
    );
    assert_eq!(
        door.keyed("GET", "/v1/kvx", "root-key", "").await.error().0,
        401
    );
}

#[tokio::test]
async fn orders_reach_the_engine_as_they_were_meant() {
    let door = admin_door().await;
    let send = async |method, path, body| door.keyed(method, path, "root-key", body).await.status;
    let body = r#"{"prompt":"hi!","cache_salt":"t"}"#;
    assert_eq!(send("DELETE", "/v1/kv", "").await, 200);
    assert_eq!(send("DELETE", "/v1/kv?salt=tenant%201", "").await, 500);
    assert_eq!(send("DELETE", "/v1/kv", body).await, 200);
    assert_eq!(
        send("POST", "/v1/kv/pin", r#"{"prompt_token_ids":[104,105]}"#).await,
        200
    );
    assert_eq!(
        send("POST", "/v1/kv/unpin", r#"{"prompt":[104,105]}"#).await,
        409
    );
    let expected = [
        KvOrder::ClearAll,
        KvOrder::ClearSalt(b"tenant 1".to_vec()),
        KvOrder::ClearPrefix(prefix("hi!", "t")),
        KvOrder::Pin(prefix("hi", "")),
        KvOrder::Unpin(prefix("hi", "")),
    ];
    assert_eq!(door.fake.log().orders, expected);
}

#[tokio::test]
async fn a_prefix_is_tokenized_as_a_request_would_be() {
    let door = admin_door().await;
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    let pinned = door
        .keyed("POST", "/v1/kv/pin", "root-key", &chat.to_string())
        .await;
    assert_eq!(pinned.json(), json!({"blocks": 3}));
    let asked = door
        .keyed(
            "POST",
            "/v1/chat/completions",
            "user-key",
            &chat.to_string(),
        )
        .await;
    assert_eq!(asked.status, 200);
    let log = door.fake.log();
    let KvOrder::Pin(pinned) = &log.orders[0] else {
        panic!("not a pin: {:?}", log.orders)
    };
    assert_eq!(pinned.tokens, log.adds[0].request.prompt);
    let mut bare = chat.clone();
    bare["add_generation_prompt"] = json!(false);
    let short = door
        .keyed("POST", "/v1/kv/pin", "root-key", &bare.to_string())
        .await;
    assert_eq!(short.status, 200);
    let KvOrder::Pin(short) = &door.fake.log().orders[1] else {
        panic!("not a pin")
    };
    assert!(pinned.tokens.starts_with(&short.tokens) && short.tokens.len() < pinned.tokens.len());
}

#[tokio::test]
async fn what_is_not_understood_clears_nothing() {
    let door = admin_door().await;
    for (method, path, body, param) in [
        ("DELETE", "/v1/kv?slat=x", "", None),
        ("DELETE", "/v1/kv?salt=a&salt=b", "", None),
        ("DELETE", "/v1/kv?salt=", "", Some("salt")),
        ("DELETE", "/v1/kv?salt=x", r#"{"prompt":"a"}"#, Some("salt")),
        ("DELETE", "/v1/kv", "{}", Some("prompt")),
        ("DELETE", "/v1/kv", r#"{"cache_salt":"x"}"#, Some("prompt")),
        ("DELETE", "/v1/kv", " ", None),
        ("POST", "/v1/kv/pin", "", None),
        ("POST", "/v1/kv/pin?salt=x", r#"{"prompt":"a"}"#, None),
        ("POST", "/v1/kv/pin", r#"{"prompt":""}"#, Some("prompt")),
        (
            "POST",
            "/v1/kv/pin",
            r#"{"prompt_token_ids":[49152]}"#,
            Some("prompt"),
        ),
        (
            "POST",
            "/v1/kv/pin",
            r#"{"prompt":"a","salt":"x"}"#,
            Some("salt"),
        ),
        ("GET", "/v1/kv?salt=x", "", None),
    ] {
        let (status, error) = door.keyed(method, path, "root-key", body).await.error();
        assert_eq!(
            (status, error["param"].as_str()),
            (400, param),
            "{method} {path} {body}: {error}"
        );
    }
    let other = json!({"prompt": "a", "model": "gpt-9"}).to_string();
    let (status, error) = door
        .keyed("DELETE", "/v1/kv", "root-key", &other)
        .await
        .error();
    assert_eq!((status, &error["code"]), (404, &json!("model_not_found")));
    let long = json!({"prompt": "a".repeat(8193)}).to_string();
    let (_, error) = door
        .keyed("POST", "/v1/kv/pin", "root-key", &long)
        .await
        .error();
    assert_eq!(error["code"], "context_length_exceeded");
    assert!(door.fake.log().orders.is_empty());
}

#[tokio::test]
async fn refusals_and_failures_carry_the_engines_words() {
    let door = admin_door().await;
    let body = r#"{"prompt":"hi"}"#;
    let (status, error) = door
        .keyed("POST", "/v1/kv/unpin", "root-key", body)
        .await
        .error();
    assert_eq!((status, &error["code"]), (409, &json!("kv_refused")));
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("that is not pinned")
    );
    let (status, error) = door
        .keyed("DELETE", "/v1/kv?salt=x", "root-key", "")
        .await
        .error();
    assert_eq!((status, &error["code"]), (500, &json!("internal_error")));
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("disk:/kv: I/O error")
    );
}

#[tokio::test]
async fn an_engine_that_dies_meanwhile_is_named() {
    let script = Script {
        obey: Arc::new(|_| None),
        ..Script::new(|_| vec![Action::Die])
    };
    let patch = json!({"admin_api_key": "root-key"});
    let mut door = Door::open_with(patch, script).await;
    let address = door.address;
    let header = "authorization: Bearer root-key\r\n";
    let bytes = crate::client::request("DELETE", "/v1/kv", header, b"");
    let waiting = tokio::spawn(async move { crate::client::exchange(address, &bytes).await });
    door.fake
        .wait_log(|log| log.orders == [KvOrder::ClearAll])
        .await;
    door.complete(&json!({"prompt": "x"})).await;
    let (status, error) = waiting.await.unwrap().error();
    assert_eq!((status, &error["code"]), (503, &json!("engine_failed")));
    let gone = door.keyed("DELETE", "/v1/kv", "root-key", "").await;
    assert_eq!(
        (gone.error().0, gone.header("retry-after")),
        (503, Some("2"))
    );
}
