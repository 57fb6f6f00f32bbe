//! Requests that go to another pool, too.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::replica::{Answers, Replica};
use crate::{Door, chat, merge, until, until_shown};

const WORDS: &[&str] = &["One", " two", " three"];
const OTHERS: &[&str] = &["One t", "wo", " four"];
/// More than the smallest budget.
const LONG: &[&str] = &["some twenty characters"; 100];
const AT_ONCE: Duration = Duration::ZERO;

/// A pool with a mirror, and the replica of each.
struct Scene {
    primary: Replica,
    mirror: Replica,
    door: Door,
}

impl Scene {
    async fn open(primary: Answers, mirror: Answers, settings: Value) -> Self {
        let primary = Replica::start(primary, &["m"]).await;
        let mirror = Replica::start(mirror, &["m2"]).await;
        let mut own = json!({"pool": "other", "model": "m2", "share": 1});
        merge(&mut own, settings);
        let fleet = json!({"slow_start_s": 0, "breaker": {"failures": 1_000_000}});
        let pools = json!([
            {"name": "own", "source": {"static": [{"url": primary.url}]}, "fleet": fleet,
             "mirror": own},
            {"name": "other", "source": {"static": [{"url": mirror.url}]}, "fleet": fleet,
             "flow": {"in_flight": 3}},
        ]);
        let door = Door::with(json!({"pools": pools})).await;
        Self {
            primary,
            mirror,
            door,
        }
    }

    /// One request, with these members; its answer.
    async fn ask(&self, more: Value) -> String {
        let mut body = chat("x");
        merge(&mut body, more);
        let answer = self.door.post(&body).await;
        assert_eq!(answer.status, 200);
        answer.text()
    }

    /// Waits until so many requests have ended like this.
    async fn counts(&self, label: &str, count: usize) {
        let line = format!("pool=\"own\",{label}}} {count}\n");
        until_shown(&line, async || {
            self.door.get("/metrics").await.text().contains(&line)
        })
        .await;
    }

    /// Waits until nothing is mirrored or held any more.
    async fn is_over(&self) {
        until("the mirror's replica is free", || self.mirror.open() == 0).await;
        for gauge in ["open", "held_bytes"] {
            let line = format!("gateway_mirrors_{gauge}{{version=\"test\",pool=\"own\"}} 0\n");
            until_shown(&line, async || {
                self.door.get("/metrics").await.text().contains(&line)
            })
            .await;
        }
    }
}

#[tokio::test]
async fn equal_and_different_answers_are_told_apart() {
    let says = |words| Answers::Says(words, AT_ONCE);
    let scene = Scene::open(says(WORDS), says(WORDS), json!({})).await;
    let greedy = json!({"temperature": 0, "stream": true});
    let expected = scene.ask(greedy.clone()).await;
    scene.counts("outcome=\"equal\"", 1).await;
    scene.mirror.answers(says(OTHERS));
    assert_eq!(scene.ask(greedy).await, expected, "the primary's");
    scene.counts("outcome=\"different\"", 1).await;
    let page = scene.door.get("/metrics").await.text();
    for (unit, sum) in [("characters", "8"), ("tokens", "2")] {
        let name = format!("mirrors_equal_{unit}_sum{{version=\"test\",pool=\"own\"}} {sum}\n");
        assert!(page.contains(&name), "{name}: {page}");
    }
    scene.ask(json!({"temperature": 0.5})).await;
    scene.counts("outcome=\"uncompared\"", 1).await;
    scene.ask(json!({"temperature": 0.5, "seed": 7})).await;
    scene.counts("outcome=\"different\"", 2).await;
    for side in ["primary", "mirror"] {
        let name = "gateway_mirrors_time_to_first_token_seconds_count";
        let line = format!("{name}{{version=\"test\",pool=\"own\",side=\"{side}\"}} ");
        assert!(
            scene.door.get("/metrics").await.text().contains(&line),
            "{line}"
        );
    }
    scene.is_over().await;
}

/// The mirror gets the request as the primary got it, under its own model's name.
#[tokio::test]
async fn the_request_is_the_same_but_for_the_model() {
    let scene = Scene::open(Answers::Whole, Answers::Whole, json!({})).await;
    let headers = [("x-request-id", "mine"), ("accept-encoding", "gzip")];
    let body = chat("x").to_string();
    let door = &scene.door;
    door.send("/v1/chat/completions?a=b", &headers, body.clone())
        .await;
    until("it is mirrored", || scene.mirror.seen().len() == 1).await;
    let seen = scene.mirror.seen().remove(0);
    assert_eq!(seen.path, "/v1/chat/completions?a=b");
    assert_eq!(seen.body, body.replace("\"m\"", "\"m2\""));
    assert_eq!(seen.headers["x-request-id"], "mine-mirror");
    assert!(!seen.headers.contains_key("accept-encoding"));
    assert!(!seen.headers.contains_key("x-penstock-resumable"));
    assert_eq!(scene.primary.seen()[0].body, body);
    door.send("/v1/embeddings", &[], body.clone()).await;
    door.send("/v1/responses", &[], body).await;
    scene.counts("reason=\"stored\"", 1).await;
    assert_eq!(
        scene.mirror.seen().len(),
        1,
        "neither embeddings nor what is stored"
    );
}

#[tokio::test]
async fn a_share_of_the_requests_is_mirrored() {
    let says = Answers::Says(WORDS, AT_ONCE);
    let scene = Scene::open(says.clone(), says, json!({"share": 0.25})).await;
    for _ in 0..40 {
        scene.ask(json!({"temperature": 0})).await;
        scene.is_over().await;
    }
    let count = scene.mirror.seen().len();
    assert!((8..=12).contains(&count), "{count}");
}

/// Whatever the mirror does, the client's answer is whole, and its own.
#[tokio::test]
async fn a_mirror_that_fails_or_hangs_is_no_client_s_concern() {
    let says = Answers::Says(WORDS, AT_ONCE);
    let more = json!({"in_flight": 1, "timeout_s": 0.5});
    let scene = Scene::open(says, Answers::Status(500, "no"), more).await;
    let greedy = json!({"temperature": 0, "stream": true});
    let expected = scene.ask(greedy.clone()).await;
    scene.counts("outcome=\"failed\"", 1).await;
    scene.mirror.answers(Answers::Breaks(2));
    assert_eq!(scene.ask(greedy.clone()).await, expected);
    scene.counts("outcome=\"failed\"", 2).await;
    scene.mirror.answers(Answers::Hangs);
    assert_eq!(scene.ask(greedy.clone()).await, expected);
    assert_eq!(
        scene.ask(greedy).await,
        expected,
        "one too many for the mirror"
    );
    scene.counts("reason=\"in_flight\"", 1).await;
    scene.counts("outcome=\"failed\"", 3).await;
    scene.is_over().await;
}

/// Tried: a client that leaves, more text than may be held, a pool that fills up, a drain.
#[tokio::test]
async fn mirrored_requests_are_dropped_first() {
    let slow = Answers::Says(WORDS, Duration::from_millis(300));
    let scene = Scene::open(slow.clone(), Answers::Hangs, json!({"held_bytes": 1024})).await;
    let body = json!({"model": "m", "temperature": 0, "stream": true, "messages": []}).to_string();
    let begin = || scene.door.begin("/v1/chat/completions", &[], body.clone());
    let left = begin().await;
    until("it is mirrored", || scene.mirror.open() == 1).await;
    drop(left);
    scene.counts("reason=\"primary\"", 1).await;
    scene.primary.answers(Answers::Says(LONG, AT_ONCE));
    scene.ask(json!({"temperature": 0, "stream": true})).await;
    scene.counts("reason=\"held_bytes\"", 1).await;
    scene.primary.answers(slow);
    let open = begin().await;
    until("it is mirrored", || scene.mirror.open() == 1).await;
    let other = |text: &str| json!({"model": "m2", "prompt": text}).to_string();
    let [first, second] =
        ["a", "b"].map(|text| scene.door.begin("/v1/completions", &[], other(text)));
    tokio::select! {
        _ = first => unreachable!("it hangs"),
        _ = second => unreachable!("it hangs"),
        () = scene.counts("reason=\"saturated\"", 1) => {}
    }
    scene.is_over().await;
    open.into_body().collect().await.unwrap();
    let open = begin().await;
    until("it is mirrored", || scene.mirror.open() == 1).await;
    let draining = tokio::spawn(scene.door.serving.drain(std::future::pending()));
    until("the mirror is left", || scene.mirror.open() == 0).await;
    let rest = open.into_body().collect().await.unwrap().to_bytes();
    assert!(rest.ends_with(b"data: [DONE]\n\n"), "the client has all");
    draining.await.unwrap();
}

#[test]
fn wrong_mirrors_are_named() {
    let complaint = |mirror: Value| {
        let pool = |name: &str| json!({"name": name, "source": {"static": []}});
        let mut own = pool("own");
        own["mirror"] = mirror;
        let config = json!({"host": "h", "port": 0, "version": "v", "pools": [own, pool("other")]});
        penstock_gateway::Config::from_json(&config.to_string()).unwrap_err()
    };
    for (mirror, wanted) in [
        (
            json!({"pool": "own", "share": 1}),
            "pool \"own\": mirror.pool is the pool itself",
        ),
        (
            json!({"pool": "x", "share": 1}),
            "mirror names pool \"x\"; there are other, own",
        ),
        (
            json!({"pool": "other", "share": 2}),
            "mirror.share is 2; 0 to 1 is possible",
        ),
        (json!({"pool": "other"}), "missing field `share`"),
        (
            json!({"pool": "other", "share": 1, "in_flight": 0}),
            "mirror.in_flight is 0",
        ),
        (
            json!({"pool": "other", "share": 1, "sahre": 1}),
            "unknown field `sahre`",
        ),
    ] {
        let found = complaint(mirror);
        assert!(found.contains(wanted), "{found}");
    }
}
