#![allow(clippy::unwrap_used)]
//! A replica without sockets, under tokio's paused clock, so that all times are exact.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::config::{Engine, EngineSettings, HttpConfig};
use crate::replica::replica;
use crate::timer::TokioTimer;

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// A step takes 10 ms, plus 10 ms per decode and 1 ms per prompt token.
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

/// A stream as received by a client: each event with its time in milliseconds.
#[derive(Debug, Default)]
struct Seen {
    status: u16,
    events: Vec<(u128, String)>,
    headers_ms: u128,
    /// Whether the connection was dropped.
    cut: bool,
}

impl Seen {
    /// Times of events with text.
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
    async fn new(more: Value) -> Self {
        let mut settings = json!({"profile": profile()});
        for (name, value) in more.as_object().unwrap() {
            settings[name] = value.clone();
        }
        let settings: EngineSettings = serde_json::from_value(settings).unwrap();
        Self::of(settings.open().unwrap()).await
    }

    async fn of(engine: Engine) -> Self {
        let config = json!({
            "host": "", "port": 0, "replicas": 1, "threads": 1, "served_model_name": "sim",
            "version": "1", "engine": {},
        });
        let config: HttpConfig = serde_json::from_value(config).unwrap();
        let router = replica(&config, Arc::new(engine), TokioTimer)
            .await
            .unwrap();
        Self {
            service: TowerToHyperService::new(router),
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

/// A completion with `length` prompt tokens, starting from `from`.
fn completion(from: u32, length: u32, max_tokens: u32) -> Value {
    let prompt: Vec<u32> = (from..from + length).collect();
    json!({"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true})
}

#[tokio::test(start_paused = true)]
async fn tokens_come_when_the_model_says() {
    let rig = Rig::new(json!({})).await;
    let second = async {
        sleep(Duration::from_millis(25)).await;
        rig.stream(COMPLETIONS, completion(500, 20, 2)).await
    };
    let (first, second) = tokio::join!(rig.stream(COMPLETIONS, completion(1, 10, 4)), second);
    // In ms: the first prompt takes 10 + 10, until 20. The second request arrives at 25. The first
    // one decodes until 40 and, to measure a decode, until 60. A decode with the second's 20 prompt
    // tokens takes 10 + 10 + 20, until 100. The second's decode takes until 120.
    assert_eq!(first.times(), [20, 40, 60, 100]);
    assert_eq!(second.times(), [100, 120]);
    assert_eq!((first.headers_ms, second.headers_ms), (20, 100));
    assert_eq!(first.last(), "[DONE]");
    assert_eq!(first.finishes(), ["length"]);
}

#[tokio::test(start_paused = true)]
async fn a_chat_begins_with_its_role_and_ends_with_usage() {
    let rig = Rig::new(json!({})).await;
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
    // The prompt: a token for the user role, three words, a token for the assistant role.
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
    let rig = Rig::new(json!({})).await;
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
    let rig = Rig::new(json!({})).await;
    let count = |answer: &Value| answer["usage"]["completion_tokens"].as_u64().unwrap();
    let (_, answer) = rig.post(COMPLETIONS, json!({"prompt": "a"})).await;
    assert_eq!(count(&answer), 16);
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let (_, answer) = rig.post(CHAT, chat.clone()).await;
    assert_eq!(
        (count(&answer), &answer["choices"][0]["finish_reason"]),
        (128, &json!("stop"))
    );
    let drawn = Rig::new(json!({"answer_tokens": "9"})).await;
    let (_, answer) = drawn.post(CHAT, chat).await;
    assert_eq!(
        (count(&answer), &answer["choices"][0]["finish_reason"]),
        (9, &json!("stop"))
    );
    // The end token has no text.
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(text.split_whitespace().count(), 8);
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_refused() {
    let rig = Rig::new(json!({})).await;
    for (path, body, status, param) in [
        (COMPLETIONS, json!({"prompt": ""}), 400, "prompt"),
        (
            COMPLETIONS,
            json!({"prompt": "a", "model": "other"}),
            404,
            "model",
        ),
        (COMPLETIONS, completion(1, 500, 13), 400, "prompt"),
        (COMPLETIONS, completion(990, 20, 1), 400, "prompt"),
        (CHAT, json!({"messages": []}), 400, "messages"),
    ] {
        let (got, answer) = rig.post(path, body.clone()).await;
        assert_eq!(
            (got.as_u16(), &answer["error"]["param"]),
            (status, &json!(param)),
            "{body}"
        );
    }
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
async fn everything_that_the_server_has_is_there() {
    let rig = Rig::new(json!({})).await;
    let (_, answer) = rig
        .post(
            COMPLETIONS,
            json!({"prompt": ["a", "b"], "echo": true, "logprobs": 2}),
        )
        .await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert!(choices[0]["text"].as_str().unwrap().starts_with("a t"));
    let logprobs = choices[1]["logprobs"]["token_logprobs"].as_array().unwrap();
    // The first prompt token has no log-probability.
    assert_eq!(logprobs.len(), 17);
    assert!(logprobs[1..].iter().all(|value| value.as_f64() < Some(0.0)));
    let chat = json!({
        "messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "logprobs": true,
        "top_logprobs": 3,
    });
    let (_, answer) = rig.post(CHAT, chat).await;
    let content = &answer["choices"][0]["logprobs"]["content"];
    assert_eq!(content[1]["top_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(content[1]["top_logprobs"][0]["token"], content[1]["token"]);
    let (_, answer) = rig
        .post(COMPLETIONS, json!({"prompt": "a", "stop": " t"}))
        .await;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_with_a_status() {
    let rig = Arc::new(Rig::new(json!({})).await);
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
    // Four can run at once and two can wait.
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 503, 503]);
}

#[tokio::test(start_paused = true)]
async fn a_client_who_leaves_frees_its_place() {
    let rig = Rig::new(json!({})).await;
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
    let rig = Rig::new(json!({})).await;
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

/// A stream of six tokens with a fault, as the client saw it, and the rig afterwards.
async fn struck(fault: &str) -> (Seen, Rig) {
    let rig = Rig::new(json!({"faults": [fault]})).await;
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
    let rig = Rig::new(json!({"faults": ["refuse"]})).await;
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
    let rig = Rig::new(json!({"faults": ["cut:1:2"]})).await;
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
async fn answers_that_do_not_stream_meet_faults_too() {
    let six = async |fault: &str| {
        let rig = Rig::new(json!({"faults": [fault]})).await;
        rig.post(COMPLETIONS, completion(1, 4, 6)).await
    };
    let (status, answer) = six("error-event:1:3").await;
    assert_eq!(
        (status.as_u16(), &answer["error"]["code"]),
        (503, &json!("engine_failed"))
    );
    let (_, answer) = six("no-finish").await;
    assert_eq!(answer["choices"][0]["finish_reason"], Value::Null);
    let (_, answer) = six("early-stop:1:2").await;
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    for longer in ["error-event:1:6", "cut:1:6", "stall:1:6", "early-stop:1:6"] {
        let (_, answer) = six(longer).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{longer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stalled_stream_stays_open_until_the_client_leaves() {
    let rig = Rig::new(json!({"faults": ["stall:1:2"]})).await;
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
