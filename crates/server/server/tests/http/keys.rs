//! Keys of a file: names, limits, reloading, and cached prefixes of their own.

use std::path::PathBuf;
use std::time::Duration;

use penstock_engine_client::testing::{Script, tokens};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::client::{read_until, request};
use crate::door::{Door, endless};

struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, keys: Value) -> Self {
        let name = format!("penstock-key-file-{}-{name}", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        file.write(keys);
        file
    }

    fn write(&self, keys: Value) {
        std::fs::write(&self.0, json!({"keys": keys}).to_string()).unwrap();
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn door(file: &KeyFile) -> Door {
    let script = Script::new(|add| match add.request.prompt.first() {
        Some(&first) if first == u32::from(b'e') => endless(),
        _ => tokens(&[97; 10], Duration::ZERO),
    });
    Door::open_with(json!({"api_key_file": file.0}), script).await
}

async fn complete(door: &Door, key: &str, prompt: &str) -> (u16, Option<u32>, Value) {
    let body = json!({"prompt": prompt}).to_string();
    let reply = door.keyed("POST", "/v1/completions", key, &body).await;
    let retry = reply.header("retry-after").map(|s| s.parse().unwrap());
    (reply.status, retry, reply.json())
}

#[tokio::test]
async fn tokens_per_minute_are_those_of_prompt_and_answer_and_of_one_key() {
    let file = KeyFile::new(
        "rate",
        json!([{"name": "slow", "key": "ks", "tokens_per_minute": 25},
               {"name": "free", "key": "kf"},
               {"name": "choices", "key": "kc", "tokens_per_minute": 27}]),
    );
    let door = door(&file).await;
    // 5 and 10 tokens: two requests fit below 25.
    for expected in [200, 200, 429] {
        let (status, retry, body) = complete(&door, "ks", "abcde").await;
        assert_eq!(status, expected, "{body}");
        if status == 429 {
            assert_eq!(body["error"]["code"], "rate_limit_exceeded");
            // 5 and the next one over the limit, at 25 a minute.
            assert!((10..=15).contains(&retry.unwrap()), "{retry:?}");
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains("tokens_per_minute of 25"), "{message}");
        }
    }
    assert_eq!(complete(&door, "kf", "abcde").await.0, 200);
    // A prompt of several choices counts once: 5 and 20 tokens, below 27.
    let choices = json!({"prompt": "abcde", "n": 2}).to_string();
    for expected in [200, 200, 429] {
        let reply = door.keyed("POST", "/v1/completions", "kc", &choices).await;
        assert_eq!(reply.status, expected);
    }
    assert_eq!(complete(&door, "other", "abcde").await.0, 401);
    let models = door.keyed("GET", "/v1/models", "ks", "").await;
    assert_eq!(models.status, 200, "what costs nothing is not limited");
}

#[tokio::test]
async fn requests_at_once_end_with_their_clients() {
    let keys = json!([{"name": "one", "key": "k1", "max_concurrent_requests": 1}]);
    let file = KeyFile::new("concurrent", keys);
    let door = door(&file).await;
    let body = json!({"prompt": "endless", "stream": true, "max_tokens": 8000}).to_string();
    let header = "authorization: Bearer k1\r\n";
    let mut stream = TcpStream::connect(door.address).await.unwrap();
    let bytes = request("POST", "/v1/completions", header, body.as_bytes());
    stream.write_all(&bytes).await.unwrap();
    read_until(&mut stream, "data: ").await;
    let (status, retry, _) = complete(&door, "k1", "x").await;
    assert_eq!((status, retry), (429, Some(1)));
    drop(stream);
    let mut status = 429;
    for _ in 0..500 {
        status = complete(&door, "k1", "x").await.0;
        if status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(status, 200, "the client has left");
}

#[tokio::test]
async fn a_changed_file_is_read_and_its_keys_keep_what_they_owe() {
    let key = |key: &str| json!([{"name": "a", "key": key, "tokens_per_minute": 5}]);
    let file = KeyFile::new("reload", key("first"));
    let door = door(&file).await;
    assert_eq!(complete(&door, "first", "abcde").await.0, 200);
    file.write(key("second"));
    let mut status = 401;
    for _ in 0..500 {
        status = complete(&door, "second", "abcde").await.0;
        if status != 401 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(status, 429, "another key of the same name");
    assert_eq!(complete(&door, "first", "abcde").await.0, 401);
}

#[tokio::test]
async fn an_own_cache_is_a_salt_that_does_not_show_the_key() {
    let file = KeyFile::new(
        "salt",
        json!([{"name": "a", "key": "ka", "own_cache": true},
               {"name": "b", "key": "kb", "own_cache": true},
               {"name": "c", "key": "kc"}]),
    );
    let mut door = door(&file).await;
    for key in ["ka", "kb", "kc", "ka"] {
        assert_eq!(complete(&door, key, "x").await.0, 200);
    }
    let log = door.fake.wait_log(|log| log.adds.len() == 4).await;
    let salts: Vec<Vec<u8>> = log
        .adds
        .iter()
        .map(|add| add.request.cache_salt.clone())
        .collect();
    assert_eq!(salts[0], salts[3]);
    assert!(salts[0] != salts[1] && salts[0].len() == 64);
    assert!(salts[2].is_empty(), "shared with all others");
}
