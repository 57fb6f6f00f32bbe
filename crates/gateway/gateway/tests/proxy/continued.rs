//! Streams of other servers that go on by their text.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::replica::{Answers, Fate, Fates, Replica, TOLD};
use crate::{Door, merge};

const PATHS: [&str; 2] = ["/v1/chat/completions", "/v1/completions"];

struct Scene {
    replicas: Vec<Replica>,
    fates: Fates,
    door: Door,
}

fn body(path: &str) -> Value {
    let mut body = json!({"model": "m", "stream": true, "max_tokens": 40, "temperature": 0});
    match path == PATHS[0] {
        true => merge(
            &mut body,
            json!({"messages": [{"role": "user", "content": "x"}]}),
        ),
        false => merge(&mut body, json!({"prompt": "x"})),
    }
    body
}

impl Scene {
    async fn open(by_text: bool) -> Self {
        let fates: Fates = Arc::new(Mutex::default());
        let mut replicas = Vec::new();
        for _ in 0..2 {
            replicas.push(Replica::start(Answers::Told(fates.clone()), &["m"]).await);
        }
        let urls: Vec<Value> = replicas.iter().map(|one| json!({"url": one.url})).collect();
        let fleet = json!({"slow_start_s": 0, "breaker": {"failures": 1_000_000},
                           "outliers": {"min_requests": 1_000_000}});
        let pool = json!({"name": "p", "source": {"static": urls}, "fleet": fleet});
        let config = json!({"pools": [pool], "resume_by_text": by_text, "resume_timeout_s": 20});
        Self {
            replicas,
            fates,
            door: Door::with(config).await,
        }
    }

    /// The events of the answer when replicas meet these fates, and the bodies that they got.
    async fn ask(&self, path: &str, body: &Value, fates: &[Fate]) -> (Vec<Value>, Vec<Value>) {
        *self.fates.lock().unwrap() = fates.iter().copied().collect();
        let before: Vec<usize> = self.replicas.iter().map(|one| one.seen().len()).collect();
        let answer = self.door.send(path, &[], body.to_string()).await;
        assert_eq!(answer.status, 200);
        let text = answer.text();
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        let events = text
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "));
        let events = events.filter(|event| *event != "[DONE]");
        let events = events
            .map(|event| serde_json::from_str(event).unwrap())
            .collect();
        let seen = self.replicas.iter().zip(before);
        let seen = seen.flat_map(|(one, before)| one.seen().split_off(before));
        let mut bodies: Vec<Value> = seen
            .map(|one| serde_json::from_slice(&one.body).unwrap())
            .collect();
        bodies.sort_by_key(|body| body.to_string().len());
        (events, bodies)
    }
}

/// Text, roles, ids, reasons of the end, usage.
fn read(events: &[Value]) -> (String, usize, Vec<&Value>, Vec<&str>, Vec<&Value>) {
    let choices = || {
        events
            .iter()
            .flat_map(|event| event["choices"].as_array().unwrap())
    };
    let text = choices().filter_map(|one| match &one["delta"] {
        Value::Null => one["text"].as_str(),
        delta => delta["content"].as_str(),
    });
    let roles = choices().filter(|one| one["delta"]["role"].is_string());
    let mut ids: Vec<&Value> = events.iter().map(|event| &event["id"]).collect();
    ids.dedup();
    let ends = choices().filter_map(|one| one["finish_reason"].as_str());
    let usage = events.iter().map(|event| &event["usage"]);
    (
        text.collect(),
        roles.count(),
        ids,
        ends.collect(),
        usage.filter(|usage| !usage.is_null()).collect(),
    )
}

#[tokio::test]
async fn a_stream_that_breaks_anywhere_goes_on_behind_its_text() {
    let scene = Scene::open(true).await;
    for path in PATHS {
        let (whole, bodies) = scene.ask(path, &body(path), &[]).await;
        assert_eq!(bodies, [body(path)]);
        let length: usize = whole.iter().map(|one| one.to_string().len() + 8).sum();
        for at in (0..length + 14).step_by(11) {
            let (events, bodies) = scene.ask(path, &body(path), &[Fate::Breaks(at)]).await;
            let (text, roles, ids, ends, usage) = read(&events);
            assert_eq!(text, TOLD.concat(), "{path} broken behind {at} bytes");
            assert_eq!(roles, usize::from(path == PATHS[0]));
            assert_eq!((ids.len(), &ends[..]), (1, &["stop"][..]));
            let wanted = json!({"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13});
            // a replica that dies behind the reason of the end takes the usage along
            let broke_late = bodies.len() == 1 && usage.is_empty();
            assert!(broke_late || usage == [&wanted], "{usage:?}");
            let Some(second) = bodies.get(1) else {
                continue;
            };
            let mut asked = body(path);
            let said = 40 - second["max_tokens"].as_u64().unwrap() as usize;
            asked["max_tokens"] = (40 - said).into();
            let so_far = TOLD[..said].concat();
            if said > 0 && path == PATHS[0] {
                let more = json!({"role": "assistant", "content": so_far});
                asked["messages"].as_array_mut().unwrap().push(more);
                merge(
                    &mut asked,
                    json!({"continue_final_message": true,
                                         "add_generation_prompt": false}),
                );
            } else if said > 0 {
                asked["prompt"] = format!("x{so_far}").into();
            }
            assert_eq!(second, &asked);
        }
    }
}

/// Tried: a replica that says that it failed, several deaths, an answer that is full already.
#[tokio::test]
async fn a_stream_goes_on_several_times_and_ends_where_it_has_to() {
    let scene = Scene::open(true).await;
    let path = PATHS[0];
    let fates = [Fate::Fails(2), Fate::Breaks(430), Fate::Fails(1)];
    let (events, bodies) = scene.ask(path, &body(path), &fates).await;
    let (text, roles, ids, ends, usage) = read(&events);
    assert_eq!((text, roles, ids.len()), (TOLD.concat(), 1, 1));
    assert_eq!((&ends[..], bodies.len()), (&["stop"][..], 4));
    assert_eq!(usage[0]["completion_tokens"], 6);
    let mut short = body(path);
    short["max_tokens"] = 3.into();
    let (whole, _) = scene.ask(path, &short, &[]).await;
    let before_end: usize = whole[..4].iter().map(|one| one.to_string().len() + 8).sum();
    let (events, bodies) = scene
        .ask(path, &short, &[Fate::Breaks(before_end + 5)])
        .await;
    assert_eq!(bodies.len(), 1);
    let (text, _, ids, ends, _) = read(&events);
    assert_eq!((text, ids.len()), (TOLD[..3].concat(), 1));
    assert_eq!(ends, ["length"]);
}

#[tokio::test]
async fn what_a_text_does_not_carry_ends_with_an_error() {
    let scene = Scene::open(true).await;
    let path = PATHS[0];
    let fits = [
        json!({"n": 1, "logprobs": false, "tools": []}),
        json!({"response_format": {"type": "text"}, "stop": ["x"]}),
    ];
    let others = [
        json!({"n": 2}),
        json!({"logprobs": true}),
        json!({"tools": [{"type": "function"}]}),
        json!({"response_format": {"type": "json_object"}}),
        json!({"guided_choice": ["a"]}),
        json!({"structured_outputs": {"regex": "a"}}),
    ];
    for (more, ends) in fits
        .iter()
        .map(|one| (one, 0))
        .chain(others.iter().map(|one| (one, 1)))
    {
        let mut asked = body(path);
        merge(&mut asked, more.clone());
        let (events, bodies) = scene.ask(path, &asked, &[Fate::Breaks(300)]).await;
        let errors = events
            .iter()
            .filter(|event| !event["error"].is_null())
            .count();
        assert_eq!((errors, bodies.len()), (ends, 2 - ends), "{more}");
    }
    let without = Scene::open(false).await;
    *without.fates.lock().unwrap() = [Fate::Breaks(300)].into();
    let answer = without.door.post(&body(path)).await.text();
    assert!(answer.contains("engine_failed"), "{answer}");
}
