//! Embeddings, scores and reranking, with an engine whose vectors show what it was given.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_engine_client::testing::{Action, Script};
use penstock_wire::{Add, Finish, Output, Pooler, PoolerOutput};
use serde_json::{Value, json};

use crate::door::Door;

fn ended(vector: Vec<f32>) -> Vec<Action> {
    vec![Action::Send(Output {
        finish: Finish::Stop,
        cached_tokens: 1,
        vector,
        ..Output::default()
    })]
}

/// Tokens of the prompt, the first and the last.
fn shape(add: &Add) -> Vec<f32> {
    let prompt = &add.request.prompt;
    let ends = [prompt[0], prompt[prompt.len() - 1]];
    vec![prompt.len() as f32, ends[0] as f32, ends[1] as f32]
}

async fn door(
    output: PoolerOutput,
    size: u32,
    answer: impl Fn(&Add) -> Vec<Action> + Send + Sync + 'static,
) -> Door {
    let mut script = Script::new(answer);
    script.ready.pooler = Pooler {
        output,
        size,
        only: output == PoolerOutput::Labels,
    };
    Door::open_with(json!({}), script).await
}

async fn plain() -> Door {
    door(PoolerOutput::Embedding, 3, |add| ended(shape(add))).await
}

fn vectors(reply: &Value) -> Vec<Value> {
    let data = reply["data"].as_array().unwrap().iter().enumerate();
    data.map(|(at, item)| {
        assert_eq!(
            (&item["index"], &item["object"]),
            (&json!(at), &json!("embedding"))
        );
        item["embedding"].clone()
    })
    .collect()
}

#[tokio::test]
async fn inputs_are_texts_or_token_ids_and_keep_their_order() {
    let door = plain().await;
    for (input, expected) in [
        (json!("abc"), vec![json!([3.0, 97.0, 99.0])]),
        (
            json!(["abc", "d"]),
            vec![json!([3.0, 97.0, 99.0]), json!([1.0, 100.0, 100.0])],
        ),
        (json!([5, 6]), vec![json!([2.0, 5.0, 6.0])]),
        (
            json!([[5, 6], [7]]),
            vec![json!([2.0, 5.0, 6.0]), json!([1.0, 7.0, 7.0])],
        ),
    ] {
        let reply = door
            .post("/v1/embeddings", &json!({"input": input}))
            .await
            .json();
        assert_eq!(vectors(&reply), expected);
        assert_eq!(
            (&reply["object"], &reply["model"]),
            (&json!("list"), &json!("tiny"))
        );
    }
    let body = json!({"input": ["abc", "d"], "model": "alias", "user": "u", "priority": -1});
    let reply = door.post("/v1/embeddings", &body).await.json();
    let usage = json!({"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0,
        "prompt_tokens_details": {"cached_tokens": 2}});
    assert_eq!(
        (&reply["usage"], &reply["model"]),
        (&usage, &json!("alias"))
    );
    assert!(reply["id"].as_str().unwrap().starts_with("embd-"));
    let adds = door.fake.log().adds;
    assert_eq!(adds.last().unwrap().request.priority, -1);
}

#[tokio::test]
async fn many_inputs_go_through_in_windows_of_what_the_engine_runs() {
    let held = Arc::new(Mutex::new((BTreeSet::new(), 0)));
    let seen = Arc::clone(&held);
    let door = door(PoolerOutput::Embedding, 3, move |add| {
        seen.lock().unwrap().0.insert(add.id);
        let answer = ended(shape(add));
        // The later an input, the sooner it ends.
        let wait = 200 / add.request.prompt.len() as u64;
        [vec![Action::Wait(Duration::from_millis(wait))], answer].concat()
    })
    .await;
    let inputs: Vec<String> = (1..=150).map(|length| "x".repeat(length)).collect();
    let reply = door
        .post("/v1/embeddings", &json!({"input": inputs}))
        .await
        .json();
    let lengths = vectors(&reply).into_iter().map(|vector| vector[0].clone());
    let expected: Vec<Value> = (1..=150).map(|length| json!(f64::from(length))).collect();
    assert_eq!(lengths.collect::<Vec<_>>(), expected);
    // More at once than the capacity of 32 + 4 would have been refused.
    assert_eq!(held.lock().unwrap().0.len(), 150);
    let reply = door.get("/metrics").await;
    let page = reply.text();
    assert!(page.contains("finished_reason=\"stop\"} 150"), "{page}");
    assert!(page.contains("vllm:prompt_tokens_total{model_name=\"tiny\",engine=\"0\"} 11325"));
    assert!(page.contains("vllm:generation_tokens_total{model_name=\"tiny\",engine=\"0\"} 0"));
}

#[tokio::test]
async fn vectors_are_shortened_scaled_and_encoded_as_asked() {
    let answer = |_: &Add| ended(vec![3.0, 4.0, 12.0]);
    let unit = door(PoolerOutput::UnitEmbedding, 3, answer).await;
    let embed = async |door: &Door, more: Value| {
        let mut body = json!({"input": "a"});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let reply = door.post("/v1/embeddings", &body).await.json();
        reply["data"][0]["embedding"].clone()
    };
    assert_eq!(
        embed(&unit, json!({"dimensions": 2})).await,
        json!([0.6, 0.8])
    );
    assert_eq!(
        embed(&unit, json!({"normalize": false})).await,
        json!([3.0, 4.0, 12.0])
    );
    let base64 = json!({"dimensions": 2, "normalize": false, "encoding_format": "base64"});
    assert_eq!(embed(&unit, base64).await, json!("AABAQAAAgEA="));
    let raw = door(PoolerOutput::Embedding, 3, answer).await;
    assert_eq!(embed(&raw, json!({})).await, json!([3.0, 4.0, 12.0]));
    let scaled = json!({"use_activation": true, "dimensions": 2});
    assert_eq!(embed(&raw, scaled).await, json!([0.6, 0.8]));
}

#[tokio::test]
async fn long_inputs_are_cut_where_the_request_says() {
    let door = plain().await;
    let long = json!([1, 2, 3, 4, 5]);
    for (more, expected) in [
        (json!({"truncate_prompt_tokens": 2}), json!([2.0, 1.0, 2.0])),
        (
            json!({"truncate_prompt_tokens": 2, "truncation_side": "left"}),
            json!([2.0, 4.0, 5.0]),
        ),
        (
            json!({"truncate_prompt_tokens": -1}),
            json!([5.0, 1.0, 5.0]),
        ),
    ] {
        let mut body = json!({"input": long});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let reply = door.post("/v1/embeddings", &body).await.json();
        assert_eq!(vectors(&reply), [expected]);
    }
    let body = json!({"input": ["x".repeat(8193)]});
    let reply = door.post("/v1/embeddings", &body).await;
    let error = &reply.json()["error"];
    assert_eq!(
        (reply.status, &error["param"], &error["code"]),
        (400, &json!("input"), &json!("context_length_exceeded"))
    );
    let whole = door
        .post("/v1/embeddings", &json!({"input": "x".repeat(8192)}))
        .await;
    assert_eq!(whole.status, 200, "no room for an output is needed");
}

#[tokio::test]
async fn what_cannot_be_embedded_is_refused_by_name() {
    let door = plain().await;
    for (body, param) in [
        (json!({"input": "a", "dimensions": 4}), "dimensions"),
        (json!({"input": ["a", ""]}), "input"),
        (json!({"input": [70_000]}), "input"),
        (json!({"input": "a", "model": "other"}), "model"),
    ] {
        let reply = door.post("/v1/embeddings", &body).await;
        assert!(matches!(reply.status, 400 | 404), "{body}");
        assert_eq!(reply.json()["error"]["param"], param, "{body}");
    }
    let keeps = Door::saying("x").await;
    for path in ["/v1/embeddings", "/v1/score", "/rerank"] {
        let body = json!({"input": "a", "text_1": "a", "text_2": "b", "query": "q",
            "documents": ["d"]});
        // One meaning for each endpoint.
        let body = match path {
            "/v1/score" => json!({"text_1": "a", "text_2": "b"}),
            _ => body,
        };
        let reply = keeps.post(path, &body).await;
        let code = &reply.json()["error"]["code"];
        assert_eq!(
            (reply.status, code),
            (400, &json!("unsupported_endpoint")),
            "{path}"
        );
    }
}

#[tokio::test]
async fn scores_are_cosines_of_embeddings() {
    let answer = |add: &Add| {
        let angle = f32::from(add.request.prompt.len() as u8 - 1);
        ended(vec![angle.cos() * 5.0, angle.sin() * 5.0])
    };
    let door = door(PoolerOutput::UnitEmbedding, 2, answer).await;
    for path in ["/v1/score", "/score"] {
        let body = json!({"text_1": "a", "text_2": ["b", "bb", "bbb"]});
        let reply = door.post(path, &body).await.json();
        let scores = reply["data"].as_array().unwrap().iter();
        let scores: Vec<f64> = scores.map(|item| item["score"].as_f64().unwrap()).collect();
        for (score, want) in scores.iter().zip([1.0, 1f64.cos(), 2f64.cos()]) {
            assert!((score - want).abs() < 1e-6, "{score}, not {want}");
        }
        assert_eq!(reply["usage"]["prompt_tokens"], 7);
    }
    let pairs = json!({"text_1": ["a", "aa"], "text_2": ["bb", "bb"]});
    let reply = door.post("/v1/score", &pairs).await.json();
    assert!((reply["data"][1]["score"].as_f64().unwrap() - 1.0).abs() < 1e-6);
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        let body = json!({"query": "a", "documents": ["bbb", "b", {"text": "bb"}], "top_n": 2});
        let reply = door.post(path, &body).await.json();
        let results = reply["results"].as_array().unwrap();
        let order: Vec<&Value> = results.iter().map(|result| &result["index"]).collect();
        assert_eq!(order, [&json!(1), &json!(2)]);
        assert_eq!(results[1]["document"], json!({"text": "bb"}));
        assert!(reply["id"].as_str().unwrap().starts_with("rerank-"));
    }
    let body = json!({"query": "a", "documents": ["b"], "return_documents": false});
    let reply = door.post("/v1/rerank", &body).await.json();
    assert_eq!(reply["results"][0].get("document"), None);
}

/// A model with a classification head: the logit of both texts together, and nothing else.
#[tokio::test]
async fn scores_of_a_classification_head_are_probabilities() {
    let answer = |add: &Add| ended(vec![add.request.prompt.len() as f32 - 3.0]);
    let one = door(PoolerOutput::Labels, 1, answer).await;
    let body = json!({"text_1": "a", "text_2": ["bb", "bbb"]});
    let reply = one.post("/v1/score", &body).await.json();
    assert_eq!(reply["data"][0]["score"], 0.5);
    let logits = json!({"text_1": "a", "text_2": ["bb", "bbb"], "activation": false});
    let reply = one.post("/v1/score", &logits).await.json();
    assert_eq!(reply["data"][1]["score"], 1.0);
    for (path, body) in [
        ("/v1/embeddings", json!({"input": "a"})),
        ("/v1/completions", json!({"prompt": "a"})),
    ] {
        let reply = one.post(path, &body).await;
        let code = &reply.json()["error"]["code"];
        assert_eq!(
            (reply.status, code),
            (400, &json!("unsupported_endpoint")),
            "{path}"
        );
    }
    let several = door(PoolerOutput::Labels, 3, |_| ended(vec![0.0; 3])).await;
    let reply = several.post("/v1/score", &logits).await;
    assert_eq!(reply.json()["error"]["code"], "unsupported_endpoint");
}

#[tokio::test]
async fn an_input_that_fails_ends_the_request_and_the_others() {
    let mut door = door(PoolerOutput::Embedding, 3, |add| {
        match add.request.prompt.len() {
            1 => vec![Action::Send(Output {
                finish: Finish::Error,
                error: Some("its numbers are not finite".to_owned()),
                ..Output::default()
            })],
            _ => Vec::new(),
        }
    })
    .await;
    let reply = door
        .post("/v1/embeddings", &json!({"input": ["aa", "a", "aaa"]}))
        .await;
    assert_eq!(reply.status, 500);
    let message = reply.json()["error"]["message"].to_string();
    assert!(message.contains("its numbers are not finite"), "{message}");
    door.fake.wait_log(|log| log.cancels.len() == 2).await;
}
