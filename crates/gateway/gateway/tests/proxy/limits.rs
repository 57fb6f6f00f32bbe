//! What keys may use, whatever their requests look like.

use std::path::PathBuf;
use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::raw::RawReplica;
use crate::replica::{Answers, Replica};
use crate::{Answer, Door, chat, until};

const WORDS: &[&str] = &[
    "a ", "b ", "c ", "d ", "e ", "f ", "g ", "h ", "i ", "j ", "k ", "l ", "m ", "n ", "o ", "p ",
    "q ", "r ", "s ", "t ", "u ", "v ", "w ", "x ", "y ", "z ", "a ", "b ", "c ", "d ", "e ", "f ",
];
const KEY: (&str, &str) = ("authorization", "Bearer ka");

/// A file of keys, until it is dropped.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, keys: Value) -> Self {
        let name = format!("penstock-gateway-keys-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, json!({"keys": keys}).to_string()).unwrap();
        Self(path)
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A gateway whose key may use so many tokens in a minute.
struct Scene {
    replica: Replica,
    door: Door,
    _keys: KeyFile,
}

impl Scene {
    async fn open(name: &str, answers: Answers, tokens: u32) -> Self {
        let replica = Replica::start(answers, &["m"]).await;
        let key = json!([{"name": "a", "key": "ka", "tokens_per_minute": tokens}]);
        let keys = KeyFile::new(name, key);
        let door = Door::open(&[&replica], json!({"api_key_file": keys.0})).await;
        Self {
            replica,
            door,
            _keys: keys,
        }
    }

    async fn ask(&self, path: &str, body: &Value) -> Answer {
        let answer = self.door.send(path, &[KEY], body.to_string()).await;
        self.over().await;
        answer
    }

    async fn over(&self) {
        until("the request is over", || {
            self.door.gateway().open_requests() == 0
        })
        .await;
    }

    /// Statuses of so many requests, one after the other.
    async fn statuses(&self, path: &str, body: &Value, count: usize) -> Vec<u16> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.ask(path, body).await.status.as_u16());
        }
        all
    }
}

#[tokio::test]
async fn a_stream_without_usage_is_paid_for_by_its_texts() {
    let says = Answers::Says(WORDS, Duration::ZERO);
    let scene = Scene::open("stream", says, 60).await;
    let chats = "/v1/chat/completions";
    let statuses = scene.statuses(chats, &chat("x"), 4).await;
    // some 40 tokens each, 10 of them the prompt
    assert_eq!(statuses, [200, 200, 429, 429]);
    let refused = scene.ask(chats, &chat("x")).await;
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    assert!(refused.headers.contains_key("retry-after"));
    // what clients accept does not change it: replicas are asked for plain bodies
    let headers = [KEY, ("accept-encoding", "gzip, br")];
    scene.door.send("/v1/tokenize", &headers, "{}").await;
    let seen = scene.replica.seen();
    assert!(
        seen.iter()
            .all(|one| !one.headers.contains_key("accept-encoding"))
    );
}

#[tokio::test]
async fn an_answer_that_is_left_early_is_paid_for() {
    let says = Answers::Says(WORDS, Duration::from_millis(5));
    let scene = Scene::open("left", says, 30).await;
    let chats = "/v1/chat/completions";
    let mut body = scene
        .door
        .begin(chats, &[KEY], chat("x").to_string())
        .await
        .into_body();
    let mut events = 0;
    while events < 25 {
        let part = body.frame().await.unwrap().unwrap().into_data().unwrap();
        events += part.windows(5).filter(|word| word == b"data:").count();
    }
    drop(body);
    scene.over().await;
    assert_eq!(scene.ask(chats, &chat("x")).await.status, 429);

    // an answer that comes whole, by the time that it has taken
    for path in [
        "/v1/chat/completions",
        "/v1/chat/completions?user=1",
        "/v1/messages",
        "/v1/responses",
        "/v1/completions",
    ] {
        let scene = Scene::open("whole", Answers::Hangs, 20).await;
        let sent = scene
            .door
            .begin(path, &[KEY], json!({"model": "m"}).to_string());
        let left = tokio::time::timeout(Duration::from_millis(1200), sent).await;
        assert!(left.is_err());
        scene.over().await;
        assert_eq!(scene.ask(path, &chat("x")).await.status, 429, "{path}");
    }
    // a stream has said nothing before its header
    let scene = Scene::open("unbegun", Answers::Hangs, 20).await;
    let body = json!({"model": "m", "stream": true}).to_string();
    let sent = scene.door.begin(chats, &[KEY], body);
    let left = tokio::time::timeout(Duration::from_millis(1200), sent).await;
    assert!(left.is_err());
    scene.over().await;
    scene.replica.answers(Answers::Whole);
    assert_eq!(scene.ask(chats, &chat("x")).await.status, 200);
    // not more than it may have
    let scene = Scene::open("bounded", Answers::Hangs, 20).await;
    let body = json!({"model": "m", "max_tokens": 3}).to_string();
    let sent = scene.door.begin(chats, &[KEY], body);
    assert!(
        tokio::time::timeout(Duration::from_millis(1200), sent)
            .await
            .is_err()
    );
    scene.over().await;
    scene.replica.answers(Answers::Whole);
    assert_eq!(scene.ask(chats, &chat("x")).await.status, 200);
}

/// An event may be many tokens, and a picture is few.
#[tokio::test]
async fn texts_are_tokens_by_their_length_and_files_are_not() {
    const LONG: &[&str] = &[concat!(
        "a text of many words that comes at once, as some servers send them; ",
        "it is as long as some forty tokens, and is paid for as such by its key"
    )];
    let scene = Scene::open("long", Answers::Says(LONG, Duration::ZERO), 40).await;
    let chats = "/v1/chat/completions";
    let statuses = scene.statuses(chats, &chat("x"), 3).await;
    assert_eq!(statuses, [200, 429, 429]);

    let scene = Scene::open("file", Answers::Says(LONG, Duration::ZERO), 3000).await;
    let picture = format!("data:image/png;base64,{}", "A".repeat(200_000));
    let part = json!({"type": "image_url", "image_url": {"url": picture}});
    let body = json!({"model": "m", "messages": [{"role": "user", "content": [part]}]});
    assert_eq!(scene.statuses(chats, &body, 4).await, [200, 200, 200, 429]);
}

#[tokio::test]
async fn the_usage_settles_what_was_estimated() {
    let scene = Scene::open("settled", Answers::Whole, 45).await;
    // a usage of 10 tokens: five requests reach the limit, however long their prompts looked
    let long = chat(&"y".repeat(2000));
    let statuses = scene.statuses("/v1/chat/completions", &long, 6).await;
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    let scene = Scene::open("embedded", Answers::Whole, 45).await;
    let input = json!({"model": "m", "input": "y".repeat(2000)});
    let statuses = scene.statuses("/v1/embeddings", &input, 6).await;
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
}

#[tokio::test]
async fn an_error_costs_nothing() {
    for status in [400, 503] {
        let scene = Scene::open("error", Answers::Status(status, "no"), 20).await;
        let long = chat(&"y".repeat(2000));
        let statuses = scene.statuses("/v1/chat/completions", &long, 3).await;
        assert_eq!(statuses, [status; 3]);
    }
    // whatever it says of a cost
    let usage = r#"{"usage":{"prompt_tokens":900,"completion_tokens":900}}"#;
    let scene = Scene::open("usage", Answers::Status(400, usage), 20).await;
    let body = chat("x");
    let statuses = scene.statuses("/v1/chat/completions", &body, 3).await;
    assert_eq!(statuses, [400; 3]);
    // a replica that breaks off what was to come whole is at fault
    let part = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    let raw = RawReplica::start(vec![part.into()]).await;
    let keys = json!([{"name": "a", "key": "ka", "tokens_per_minute": 20}]);
    let keys = KeyFile::new("broken", keys);
    let pool = json!({"name": "p", "source": {"static": [{"url": raw.url}]},
                      "fleet": {"slow_start_s": 0, "breaker": {"failures": 1000}}});
    let door = Door::with(json!({"pools": [pool], "api_key_file": keys.0})).await;
    for n in 0..3 {
        let body = chat(&"y".repeat(2000)).to_string();
        let answer = door.begin("/v1/chat/completions", &[KEY], body).await;
        assert_eq!(answer.status(), 200, "{n}");
        assert!(answer.into_body().collect().await.is_err(), "{n}");
        until("it is over", || door.gateway().open_requests() == 0).await;
    }
}

/// What replicas keep costs them something, too; the list of models costs nothing.
#[tokio::test]
async fn limits_hold_for_every_method() {
    let scene = Scene::open("methods", Answers::Whole, 15).await;
    let long = chat(&"y".repeat(200));
    let statuses = scene.statuses("/v1/chat/completions", &long, 3).await;
    assert_eq!(statuses, [200, 200, 429]);
    for (path, wanted) in [("/v1/files/f", 429), ("/v1/models", 200)] {
        assert_eq!(scene.door.get_with(path, &[KEY]).await.status, wanted);
    }
}

#[tokio::test]
async fn a_key_with_a_cache_of_its_own_salts_its_prompts() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let keys = KeyFile::new(
        "salted",
        json!([
            {"name": "a", "key": "ka", "own_cache": true},
            {"name": "b", "key": "kb", "own_cache": true},
            {"name": "c", "key": "kc"},
        ]),
    );
    let door = Door::open(&[&replica], json!({"api_key_file": keys.0})).await;
    let sent = async |key: &str, path: &str, body: &str| {
        let bearer = format!("Bearer {key}");
        let answer = door
            .send(path, &[("authorization", &bearer)], body.to_owned())
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let body = replica.seen().pop().unwrap().body;
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    let plain = json!({"model": "m", "messages": []}).to_string();
    let paths = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
    ];
    let salt = sent("ka", paths[0], &plain).await["cache_salt"].clone();
    assert_eq!(salt.as_str().unwrap().len(), 64);
    for path in paths {
        let body = sent("ka", path, &plain).await;
        assert_eq!(
            body,
            json!({"cache_salt": salt, "model": "m", "messages": []})
        );
        assert_ne!(sent("kb", path, &plain).await["cache_salt"], salt);
        assert_eq!(sent("kc", path, &plain).await.get("cache_salt"), None);
    }
    // a salt of the client's own does not lead out of it
    for own in [json!(salt), json!("x"), json!(null), json!("")] {
        let mut body: Value = serde_json::from_str(&plain).unwrap();
        body["cache_salt"] = own.clone();
        let seen = sent("kb", paths[0], &body.to_string()).await;
        assert_eq!(seen["cache_salt"].as_str().unwrap().len(), 64);
        assert_ne!(seen["cache_salt"], salt);
        assert_eq!(
            sent("kc", paths[0], &body.to_string()).await["cache_salt"],
            own
        );
    }
    assert_eq!(
        sent("ka", paths[0], "{ }").await,
        json!({"cache_salt": salt})
    );
    assert_eq!(sent("ka", "/v1/tokenize", "{}").await, json!({}));
}
