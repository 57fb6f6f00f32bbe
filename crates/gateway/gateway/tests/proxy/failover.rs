//! Streams that go on on another replica.

use std::sync::{Arc, Mutex};

use http_body_util::BodyExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::replica::{Answers, END, Fate, Fates, Replica, STEPS, step};
use crate::{Door, merge, until};

fn body() -> Value {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]})
}

fn whole() -> String {
    (0..STEPS).map(step).chain([END.to_owned()]).collect()
}

/// Two replicas behind a gateway that forgives them everything.
struct Scene {
    replicas: Vec<Replica>,
    fates: Fates,
    door: Door,
}

impl Scene {
    async fn open(more: Value) -> Self {
        let fates: Fates = Arc::new(Mutex::default());
        let mut replicas = Vec::new();
        for _ in 0..2 {
            replicas.push(Replica::start(Answers::Marked(fates.clone()), &["m"]).await);
        }
        let urls: Vec<Value> = replicas.iter().map(|one| json!({"url": one.url})).collect();
        let fleet = json!({
            "slow_start_s": 0, "breaker": {"failures": 1_000_000},
            "outliers": {"min_requests": 1_000_000},
            "health": {"period_s": 0.1, "timeout_s": 5, "failures": 2},
        });
        let pool = json!({"name": "p", "source": {"static": urls}, "fleet": fleet});
        let mut config = json!({"pools": [pool], "resume_timeout_s": 20});
        merge(&mut config, more);
        Self {
            replicas,
            fates,
            door: Door::with(config).await,
        }
    }

    /// The answer when replicas meet these fates, and the bodies that they got.
    async fn ask(&self, fates: &[Fate]) -> (String, Vec<Value>) {
        *self.fates.lock().unwrap() = fates.iter().copied().collect();
        let before: Vec<usize> = self.replicas.iter().map(|one| one.seen().len()).collect();
        let answer = self.door.post(&body()).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers.get("x-penstock-resumable"), None);
        let seen = self.replicas.iter().zip(before);
        let seen = seen.flat_map(|(one, before)| one.seen().split_off(before));
        let seen = seen.map(|one| serde_json::from_slice(&one.body).unwrap());
        (answer.text(), seen.collect())
    }
}

#[tokio::test]
async fn a_stream_that_breaks_anywhere_goes_on_elsewhere_and_nothing_comes_twice() {
    let scene = Scene::open(json!({})).await;
    let (text, _) = scene.ask(&[]).await;
    assert_eq!(text, whole());
    let length = whole().len() + STEPS * ":resume [0]\n\n".len() + 30;
    for at in 0..length {
        let (text, bodies) = scene.ask(&[Fate::Breaks(at)]).await;
        assert_eq!(text, whole(), "broken behind {at} bytes");
        let mut resumed: Vec<&Value> = bodies.iter().collect();
        resumed.sort_by_key(|body| body["resume"].as_array().map_or(0, Vec::len));
        assert_eq!(resumed.len(), 2);
        assert_eq!(resumed[0], &body());
        if let Some(marks) = resumed[1].get("resume") {
            let known = marks.as_array().unwrap().len();
            let wanted = std::iter::once(json!({"seed": 5}));
            let wanted = wanted.chain((0..known - 1).map(|at| json!([at])));
            assert_eq!(marks, &wanted.collect::<Value>());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn a_stream_survives_several_deaths(deaths in prop::collection::vec(0..300usize, 2..5)) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let text = runtime.block_on(async {
            let scene = Scene::open(json!({"retries": 9})).await;
            let fates: Vec<Fate> = deaths.into_iter().map(Fate::Breaks).collect();
            scene.ask(&fates).await.0
        });
        prop_assert_eq!(text, whole());
    }
}

#[tokio::test]
async fn a_replica_that_says_that_its_engine_failed_is_left() {
    let scene = Scene::open(json!({})).await;
    for steps in 1..STEPS {
        let (text, bodies) = scene.ask(&[Fate::Fails(steps)]).await;
        assert_eq!(text, whole());
        assert_eq!(bodies.len(), 2);
    }
    let page = scene.door.get("/metrics").await.text();
    assert!(
        page.contains("gateway_failover_seconds_count{version=\"test\"} 5"),
        "{page}"
    );
    // the others fail as well: the first one's own words
    let fails = [
        Fate::Fails(2),
        Fate::Unmarked,
        Fate::Unmarked,
        Fate::Unmarked,
    ];
    let (text, bodies) = scene.ask(&fails).await;
    let words = "data: {\"error\":1}\n\ndata: [DONE]\n\n";
    assert_eq!(text, format!("{}{}{words}", step(0), step(1)));
    assert_eq!(bodies.len(), 4, "as many as --retries has");
    let page = scene.door.get("/metrics").await.text();
    assert!(
        page.contains("gateway_failovers_lost_total{version=\"test\"} 1"),
        "{page}"
    );
}

#[tokio::test]
async fn a_frozen_replica_is_left_when_its_health_checks_fail() {
    let scene = Scene::open(json!({})).await;
    *scene.fates.lock().unwrap() = [Fate::Hangs(90)].into();
    let answer = scene
        .door
        .begin("/v1/chat/completions", &[], body().to_string());
    let mut answer = answer.await.into_body();
    let first = answer.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(whole().as_bytes().starts_with(&first));
    let frozen = scene.replicas.iter().find(|one| one.open() == 1).unwrap();
    frozen.healthy(false);
    let rest = tokio::time::timeout(crate::DEADLINE, answer.collect()).await;
    let rest = rest.unwrap().unwrap().to_bytes();
    assert_eq!([first, rest].concat(), whole().as_bytes());
    until("the frozen one is left", || frozen.open() == 0).await;
}

/// The replica closes its connection in good order, behind any byte.
#[tokio::test]
async fn a_stream_that_ends_before_its_answer_goes_on_elsewhere() {
    let scene = Scene::open(json!({})).await;
    let length = whole().len() + STEPS * ":resume [0]\n\n".len() + ":resume {\"seed\":5}\n\n".len();
    for at in (0..length).step_by(3).chain(length - 20..length) {
        let (text, bodies) = scene.ask(&[Fate::Ends(at)]).await;
        assert_eq!(text, whole(), "ended behind {at} bytes");
        assert_eq!(bodies.len(), if at < length - 2 { 2 } else { 1 }, "{at}");
    }
}

#[tokio::test]
async fn a_stream_without_room_for_its_request_does_not_go_on() {
    let scene = Scene::open(json!({"resume_bytes": 10})).await;
    *scene.fates.lock().unwrap() = [Fate::Hangs(90)].into();
    let path = "/v1/chat/completions";
    let mut held = scene.door.begin(path, &[], body().to_string()).await;
    held.body_mut().frame().await.unwrap().unwrap();
    let (text, bodies) = scene.ask(&[Fate::Breaks(120)]).await;
    assert!(
        text.starts_with(&(step(0) + &step(1))) && !text.contains(":resume"),
        "{text}"
    );
    assert_eq!(text.matches("engine_failed").count(), 1, "{text}");
    assert_eq!(bodies.len(), 1);
    let page = scene.door.get("/metrics").await.text();
    let line = "penstock:gateway_streams_not_kept_total{version=\"test\"} 1";
    assert!(page.contains(line), "{page}");
    drop(held);
    until("it has left", || scene.door.gateway().open_requests() == 0).await;
    assert_eq!(scene.ask(&[Fate::Breaks(120)]).await.0, whole());
}

#[tokio::test]
async fn a_client_that_leaves_meanwhile_ends_the_search() {
    let scene = Scene::open(json!({})).await;
    let fates = std::iter::once(Fate::Breaks(120)).chain([Fate::Hangs(0); 3]);
    *scene.fates.lock().unwrap() = fates.collect();
    let answer = scene
        .door
        .begin("/v1/chat/completions", &[], body().to_string());
    let mut answer = answer.await.into_body();
    answer.frame().await.unwrap().unwrap();
    drop(answer);
    until("it has left", || scene.door.gateway().open_requests() == 0).await;
    until("both are free", || {
        scene.replicas.iter().all(|one| one.open() == 0)
    })
    .await;
}

#[tokio::test]
async fn a_renamed_model_keeps_its_name() {
    let scene = Scene::open(json!({
        "models": [{"name": "chat", "targets": [{"pool": "p", "model": "m"}]}],
    }))
    .await;
    *scene.fates.lock().unwrap() = [Fate::Breaks(130)].into();
    let mut asked = body();
    asked["model"] = "chat".into();
    let answer = scene.door.post(&asked).await;
    assert_eq!(answer.text(), whole().replace("\"m\"", "\"chat\""));
}

#[tokio::test]
async fn without_it_no_marks_are_asked_for() {
    let scene = Scene::open(json!({"resume_timeout_s": 0})).await;
    let headers = [("x-penstock-resumable", "1")];
    let body = body().to_string();
    scene
        .door
        .send("/v1/chat/completions", &headers, body)
        .await;
    let seen = scene.replicas.iter().flat_map(Replica::seen);
    let asked = seen.map(|one| one.headers.contains_key("x-penstock-resumable"));
    assert_eq!(asked.collect::<Vec<_>>(), [false]);
}
