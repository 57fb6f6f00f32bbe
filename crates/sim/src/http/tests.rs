#![allow(clippy::unwrap_used)]
//! The server without sockets, under tokio's paused clock: every time is exact.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep};

use super::*;
use crate::config::{Engine, EngineSettings};
use crate::driver::{Clock, Driver};
use crate::timer::TokioTimer;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A step costs 10 ms, 10 ms for each decode and 1 ms for each prompt token.
fn profile() -> Value {
    json!({
        "max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_queue": 2,
        "block_size": 16, "num_blocks": 64, "vocab_size": 1000,
        "timing": {
            "base_us": 10_000, "decode_us": [[1, 10_000]], "prompt_us_per_token": 1000,
            "decode_us_per_context_ktoken": 0, "prompt_us_per_context_ktoken": 0,
        },
    })
}

struct Rig {
    service: TowerToHyperService<axum::Router>,
    beginning: Instant,
}

/// A stream as a client saw it: each event with its time in milliseconds.
#[derive(Debug, Default)]
struct Seen {
    status: u16,
    events: Vec<(u128, String)>,
    headers_ms: u128,
    /// The connection was broken.
    cut: bool,
}

impl Seen {
    /// Times of events that carry text.
    fn times(&self) -> Vec<u128> {
        let with_text = |(_, event): &&(u128, String)| event.contains(" t");
        self.events
            .iter()
            .filter(with_text)
            .map(|(at, _)| *at)
            .collect()
    }

    fn json(&self, index: usize) -> Value {
        serde_json::from_str(&self.events[index].1).unwrap()
    }

    fn last(&self) -> &str {
        self.events.last().map_or("", |(_, event)| event)
    }

    fn finishes(&self) -> Vec<Value> {
        let finish = |event: &Value| event["choices"][0]["finish_reason"].clone();
        let parsed = self
            .events
            .iter()
            .filter_map(|(_, e)| serde_json::from_str(e).ok());
        parsed
            .map(|event: Value| finish(&event))
            .filter(|f| !f.is_null())
            .collect()
    }
}

impl Rig {
    fn new(more: Value) -> Self {
        let mut settings = json!({"profile": profile()});
        for (name, value) in more.as_object().unwrap() {
            settings[name] = value.clone();
        }
        let settings: EngineSettings = serde_json::from_value(settings).unwrap();
        Self::of(settings.open().unwrap())
    }

    fn of(engine: Engine) -> Self {
        let (commands, inbox) = unbounded_channel();
        let clock = Clock::new();
        let counters = Arc::new(Counters::default());
        let publisher = HttpPublisher::new(engine.vocabulary.clone(), counters.clone());
        let driver = Driver::new(engine.batcher(), publisher, inbox, clock, TokioTimer);
        tokio::spawn(driver.run());
        let app = App {
            model: "sim".to_owned(),
            version: "1".to_owned(),
            profile: engine.profile.clone(),
            vocabulary: engine.vocabulary.clone(),
            counters,
            faults: engine.faults.clone(),
            draws_lengths: engine.lengths.is_some(),
            commands,
            clock,
            requests: AtomicU64::new(0),
        };
        Self {
            service: TowerToHyperService::new(router(Arc::new(app))),
            beginning: Instant::now(),
        }
    }

    fn now(&self) -> u128 {
        self.beginning.elapsed().as_millis()
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Response {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::from(body.to_string())).unwrap();
        self.service.call(request).await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        let response = self.send("POST", path, &body).await;
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap())
    }

    async fn stream(&self, path: &str, mut body: Value) -> Seen {
        body["stream"] = true.into();
        let response = self.send("POST", path, &body).await;
        let mut seen = Seen {
            status: response.status().as_u16(),
            headers_ms: self.now(),
            ..Seen::default()
        };
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                seen.cut = true;
                break;
            };
            let text = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
            for event in text.split_terminator("\n\n") {
                let event = event.strip_prefix("data: ").unwrap_or(event);
                seen.events.push((self.now(), event.to_owned()));
            }
        }
        seen
    }

    async fn metric(&self, name: &str) -> f64 {
        let response = self.send("GET", "/metrics", &Value::Null).await;
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8(bytes.to_vec()).unwrap();
        let line = page
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")));
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }
}

/// A completion of `length` prompt tokens from `from` on.
fn completion(from: u32, length: u32, max_tokens: u32) -> Value {
    let prompt: Vec<u32> = (from..from + length).collect();
    json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true})
}

#[tokio::test(start_paused = true)]
async fn tokens_come_when_the_model_says() {
    let rig = Rig::new(json!({}));
    let second = async {
        sleep(Duration::from_millis(25)).await;
        rig.stream(COMPLETIONS, completion(500, 20, 2)).await
    };
    let (first, second) = tokio::join!(rig.stream(COMPLETIONS, completion(1, 10, 4)), second);
    // 10 + 10 = 20. The second arrives at 25, while the first decodes until 40; then both: 10 + 10
    // + 20 until 80. Both decode (10 + 20) until 110, the first alone until 130.
    assert_eq!(first.times(), [20, 40, 80, 110]);
    assert_eq!(second.times(), [80, 110]);
    assert_eq!((first.headers_ms, second.headers_ms), (20, 80));
    assert_eq!(first.last(), "[DONE]");
    assert_eq!(first.finishes(), ["length"]);
}

#[tokio::test(start_paused = true)]
async fn a_chat_begins_with_its_role_and_ends_with_usage() {
    let rig = Rig::new(json!({}));
    let body = json!({
        "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 3,
        "stream_options": {"include_usage": true}, "model": "sim",
    });
    let seen = rig.stream(CHAT, body.clone()).await;
    let deltas: Vec<Value> = (0..4)
        .map(|at| seen.json(at)["choices"][0]["delta"].clone())
        .collect();
    assert_eq!(deltas[0], json!({"role": "assistant", "content": ""}));
    assert!(deltas[1..].iter().all(|delta| delta.get("role").is_none()));
    let usage = seen.json(4);
    assert_eq!(usage["choices"], json!([]));
    // user, three words, assistant.
    assert_eq!(usage["usage"]["prompt_tokens"], 5);
    assert_eq!(usage["usage"]["completion_tokens"], 3);
    let text: String = deltas
        .iter()
        .map(|d| d["content"].as_str().unwrap())
        .collect();
    let mut whole = body.clone();
    whole.as_object_mut().unwrap().remove("stream_options");
    let (status, answer) = rig.post(CHAT, whole).await;
    assert_eq!(status, 200);
    assert_eq!(answer["choices"][0]["message"]["content"], text);
    assert_eq!(answer["usage"], usage["usage"]);
}

#[tokio::test(start_paused = true)]
async fn usage_comes_when_asked_for_only() {
    let rig = Rig::new(json!({}));
    let seen = rig.stream(COMPLETIONS, completion(1, 40, 2)).await;
    assert!(!seen.events.iter().any(|(_, event)| event.contains("usage")));
    let mut body = completion(1, 40, 2);
    body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let seen = rig.stream(COMPLETIONS, body).await;
    let counts: Vec<Value> = (0..3)
        .map(|at| seen.json(at)["usage"]["completion_tokens"].clone())
        .collect();
    assert_eq!(counts, [1, 2, 2]);
    assert_eq!(
        seen.json(2)["usage"]["prompt_tokens_details"]["cached_tokens"],
        32
    );
    assert_eq!(rig.metric("vllm:prefix_cache_hits_total").await, 32.0);
    assert_eq!(rig.metric("vllm:prompt_tokens_total").await, 80.0);
    assert_eq!(rig.metric("vllm:generation_tokens_total").await, 4.0);
}

#[tokio::test(start_paused = true)]
async fn lengths_without_max_tokens() {
    let rig = Rig::new(json!({}));
    let count = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    let (_, answer) = rig.post(COMPLETIONS, json!({"prompt": "a"})).await;
    assert_eq!(count(&answer), 16);
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let (_, answer) = rig.post(CHAT, chat.clone()).await;
    assert_eq!(
        (count(&answer), &answer["choices"][0]["finish_reason"]),
        (128, &json!("stop"))
    );
    let drawn = Rig::new(json!({"answer_tokens": "9"}));
    let (_, answer) = drawn.post(CHAT, chat).await;
    assert_eq!(
        (count(&answer), &answer["choices"][0]["finish_reason"]),
        (9, &json!("stop"))
    );
    // The end of text is a token without text.
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.split_whitespace().count(), 8);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_modelled_or_wrong_is_refused() {
    let rig = Rig::new(json!({}));
    for (path, body, status, param) in [
        (COMPLETIONS, json!({"prompt": ["a", "b"]}), 400, "prompt"),
        (COMPLETIONS, json!({"prompt": ""}), 400, "prompt"),
        (
            COMPLETIONS,
            json!({"prompt": "a", "logprobs": 1}),
            400,
            "logprobs",
        ),
        (
            COMPLETIONS,
            json!({"prompt": "a", "stop": "x"}),
            400,
            "stop",
        ),
        (
            COMPLETIONS,
            json!({"prompt": "a", "model": "other"}),
            404,
            "model",
        ),
        (COMPLETIONS, completion(1, 500, 13), 400, "prompt"),
        (CHAT, json!({"messages": []}), 400, "messages"),
    ] {
        let (got, answer) = rig.post(path, body.clone()).await;
        assert_eq!(
            (got.as_u16(), &answer["error"]["param"]),
            (status, &json!(param)),
            "{body}"
        );
    }
    let (status, answer) = rig.post(COMPLETIONS, completion(990, 20, 1)).await;
    assert_eq!(status, 500);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("vocabulary")
    );
    assert_eq!(
        rig.send("GET", COMPLETIONS, &Value::Null).await.status(),
        405
    );
    assert_eq!(
        rig.send("GET", "/nowhere", &Value::Null).await.status(),
        404
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_with_a_status() {
    let rig = Arc::new(Rig::new(json!({})));
    let mut statuses = Vec::new();
    let mut set = tokio::task::JoinSet::new();
    for n in 0..8 {
        let rig = rig.clone();
        set.spawn(async move { rig.post(COMPLETIONS, completion(1 + 50 * n, 4, 1)).await });
    }
    while let Some(done) = set.join_next().await {
        statuses.push(done.unwrap().0.as_u16());
    }
    statuses.sort_unstable();
    // All come before the first step takes anybody in, so two may wait.
    assert_eq!(statuses, [200, 200, 503, 503, 503, 503, 503, 503]);
}

#[tokio::test(start_paused = true)]
async fn a_client_who_leaves_frees_its_place() {
    let rig = Rig::new(json!({}));
    let mut body = completion(1, 10, 400);
    body["stream"] = true.into();
    let mut response = rig.send("POST", COMPLETIONS, &body).await.into_body();
    response.frame().await.unwrap().unwrap();
    sleep(Duration::from_millis(5)).await;
    assert_eq!(rig.metric("vllm:num_requests_running").await, 1.0);
    assert!(rig.metric("vllm:kv_cache_usage_perc").await > 0.0);
    drop(response);
    sleep(Duration::from_millis(60)).await;
    assert_eq!(rig.metric("vllm:num_requests_running").await, 0.0);
    assert_eq!(rig.metric("vllm:kv_cache_usage_perc").await, 0.0);
}

#[tokio::test(start_paused = true)]
async fn the_tokenizer_answers() {
    let rig = Rig::new(json!({}));
    let (_, answer) = rig
        .post("/tokenize", json!({"prompt": "t5 hello t7"}))
        .await;
    assert_eq!(
        (&answer["count"], &answer["tokens"][2]),
        (&json!(3), &json!(7))
    );
    let (_, answer) = rig.post("/detokenize", json!({"tokens": [5, 7]})).await;
    assert_eq!(answer["prompt"], " t5 t7");
    let (status, _) = rig.post("/detokenize", json!({"tokens": [5000]})).await;
    assert_eq!(status, 400);
    let models = rig.send("GET", "/v1/models", &Value::Null).await;
    let bytes = models.into_body().collect().await.unwrap().to_bytes();
    let models: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(
        (
            &models["data"][0]["id"],
            &models["data"][0]["max_model_len"]
        ),
        (&json!("sim"), &json!(512))
    );
    for path in ["/health", "/ready", "/version"] {
        assert_eq!(rig.send("GET", path, &Value::Null).await.status(), 200);
    }
}

/// A stream of six tokens that meets a fault, and the engine afterwards.
async fn struck(fault: &str) -> (Seen, Rig) {
    let rig = Rig::new(json!({"faults": [fault]}));
    let mut body = completion(1, 10, 6);
    body["stream_options"] = json!({"include_usage": true});
    let seen = rig.stream(COMPLETIONS, body).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        rig.metric("vllm:num_requests_running").await,
        0.0,
        "{fault}"
    );
    (seen, rig)
}

#[tokio::test(start_paused = true)]
async fn refusals_on_purpose() {
    let rig = Rig::new(json!({"faults": ["refuse"]}));
    let response = rig.send("POST", COMPLETIONS, &completion(1, 4, 2)).await;
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
    let (seen, _) = struck("status:1:418").await;
    assert_eq!(seen.status, 418);
}

#[tokio::test(start_paused = true)]
async fn an_error_event_ends_the_stream() {
    let (seen, rig) = struck("error-event:1:3").await;
    assert_eq!(seen.times().len(), 3);
    assert!(
        seen.events[3]
            .1
            .starts_with("{\"error\":{\"message\":\"The engine failed")
    );
    assert_eq!((seen.last(), seen.cut), ("[DONE]", false));
    assert!(rig.metric("vllm:generation_tokens_total").await < 6.0);
    let (seen, _) = struck("error-event:1:0").await;
    assert_eq!(seen.status, 503);
}

#[tokio::test(start_paused = true)]
async fn a_cut_breaks_the_connection() {
    let (seen, _) = struck("cut:1:2").await;
    assert_eq!((seen.times().len(), seen.cut), (2, true));
    let rig = Rig::new(json!({"faults": ["cut:1:2"]}));
    let response = rig.send("POST", COMPLETIONS, &completion(1, 4, 4)).await;
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn endings_on_purpose() {
    let (seen, _) = struck("no-finish").await;
    assert_eq!(
        (seen.times().len(), seen.finishes().len(), seen.last()),
        (6, 0, "[DONE]")
    );
    let (seen, _) = struck("early-stop:1:2").await;
    assert_eq!(
        (seen.times().len(), seen.finishes()),
        (2, vec![json!("stop")])
    );
    assert_eq!(seen.json(2)["usage"]["completion_tokens"], 2);
    let (seen, _) = struck("no-usage").await;
    assert!(!seen.events.iter().any(|(_, event)| event.contains("usage")));
    let (seen, _) = struck("malformed:1:3").await;
    let broken: Vec<usize> = (0..seen.events.len() - 1)
        .filter(|at| serde_json::from_str::<Value>(&seen.events[*at].1).is_err())
        .collect();
    assert_eq!((broken, seen.times().len()), (vec![3], 6));
    let (seen, _) = struck("slow-headers:1:0.5").await;
    assert_eq!(seen.headers_ms, 520);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_stream_stays_open_until_the_client_leaves() {
    let rig = Rig::new(json!({"faults": ["stall:1:2"]}));
    let stream = rig.stream(COMPLETIONS, completion(1, 4, 6));
    assert!(
        tokio::time::timeout(Duration::from_secs(100), stream)
            .await
            .is_err()
    );
    let mut body = completion(1, 4, 6);
    body["stream"] = true.into();
    let mut response = rig.send("POST", COMPLETIONS, &body).await.into_body();
    for _ in 0..2 {
        response.frame().await.unwrap().unwrap();
    }
    assert!(
        tokio::time::timeout(Duration::from_secs(100), response.frame())
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn an_ended_engine_breaks_what_is_open() {
    let (writer, reader) = pipe::pipe();
    writer.write(|out| out.extend_from_slice(b"ab"));
    writer.write(|out| out.extend_from_slice(b"cd"));
    let mut body = reader.guarded(());
    let frame = body.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "abcd");
    drop(writer);
    assert!(body.frame().await.unwrap().is_err());
}
