//! Requests that two replicas get because the first does not answer.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::replica::{Answers, Replica, word};
use crate::{Door, chat, merge, until, until_shown};

const WORDS: &[&str] = &["One", " two"];
/// Much longer than the patience of a test's gateway.
const LATE: Duration = Duration::from_secs(1);

struct Scene {
    replicas: [Replica; 2],
    door: Door,
}

impl Scene {
    async fn open(answers: [Answers; 2], hedge: Value, more: Value) -> Self {
        let [first, second] = answers;
        let replicas = [
            Replica::start(first, &["m"]).await,
            Replica::start(second, &["m"]).await,
        ];
        let urls: Vec<Value> = replicas.iter().map(|one| json!({"url": one.url})).collect();
        let fleet = json!({"slow_start_s": 0, "breaker": {"failures": 1_000_000}});
        let mut pool = json!({"name": "p", "source": {"static": urls}, "fleet": fleet,
                              "hedge": {"after_ms": 20, "share": 1}});
        merge(&mut pool["hedge"], hedge);
        merge(&mut pool, more);
        let door = Door::with(json!({"pools": [pool]})).await;
        Self { replicas, door }
    }

    async fn ask(&self, more: Value) -> String {
        let mut body = chat("x");
        body["stream"] = true.into();
        merge(&mut body, more);
        let answer = self.door.post(&body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    }

    /// The number of a label's sample on the metrics page.
    async fn count(&self, label: &str) -> usize {
        let page = self.door.get("/metrics").await.text();
        let line = page.lines().find(|line| line.contains(label));
        line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    fn seen(&self) -> usize {
        self.replicas.iter().map(|one| one.seen().len()).sum()
    }

    async fn is_over(&self) {
        until("the replicas are left", || {
            self.replicas.iter().all(|one| one.open() == 0)
        })
        .await;
        until_shown("no reservation is left", async || {
            let page = self.door.get("/metrics").await.text();
            let running = page
                .lines()
                .filter(|line| line.contains("replica_running{"));
            running.into_iter().all(|line| line.ends_with(" 0"))
        })
        .await;
    }
}

#[tokio::test]
async fn a_replica_that_does_not_answer_is_overtaken() {
    let says = Answers::Says(WORDS, Duration::ZERO);
    let scene = Scene::open([Answers::Hangs, says], json!({}), json!({})).await;
    let wanted: String = WORDS
        .iter()
        .map(|said| word(&json!({"content": said}), &Value::Null))
        .chain([word(&json!({}), &"stop".into()), "data: [DONE]\n\n".into()])
        .collect();
    for _ in 0..100 {
        assert_eq!(scene.ask(json!({})).await, wanted, "one answer, whole");
        if scene.replicas[0].seen().len() >= 3 {
            break;
        }
    }
    let hung = scene.replicas[0].seen().len();
    assert!(hung >= 3, "{hung}");
    assert_eq!(scene.count("outcome=\"won\"").await, hung);
    assert_eq!(scene.count("outcome=\"lost\"").await, 0);
    scene.is_over().await;
    assert_eq!(scene.door.gateway().open_requests(), 0);
}

#[tokio::test]
async fn a_second_replica_that_refuses_leaves_the_first_one() {
    let answers = [Answers::Late(LATE), Answers::Status(503, "full")];
    let scene = Scene::open(answers, json!({}), json!({})).await;
    let asked = (0..4).map(|_| scene.ask(json!({})));
    assert_eq!(join_all(asked).await.len(), 4);
    assert!(scene.count("outcome=\"lost\"").await >= 1);
    assert_eq!(scene.replicas[0].seen().len(), 4, "each exactly once");
    scene.is_over().await;
}

/// Tried: an answer that comes whole, a long body, one that is stored, a full pool.
#[tokio::test]
async fn what_is_not_to_be_computed_twice_is_sent_once() {
    let late = [Answers::Late(LATE), Answers::Late(LATE)];
    let more = json!({"flow": {"in_flight": 1}});
    let scene = Scene::open(late, json!({"max_bytes": 1000}), more).await;
    let long = "x".repeat(1000);
    let asked = [
        json!({"stream": false}),
        json!({"store": true}),
        json!({"user": long}),
    ];
    join_all(asked.map(|more| scene.ask(more))).await;
    assert_eq!(
        (scene.seen(), scene.count("reason=\"request\"").await),
        (3, 3)
    );
    for round in 0..2 {
        let (before, filler) = (scene.seen(), json!({"stream": false}));
        // One replica is full before the request reaches the other one.
        let request = async {
            until("a full replica", || scene.seen() > before).await;
            scene.ask(json!({})).await
        };
        tokio::join!(scene.ask(filler), request);
        assert_eq!(
            (scene.seen(), scene.count("reason=\"saturated\"").await),
            (before + 2, round + 1)
        );
    }
    scene.is_over().await;
}

#[tokio::test]
async fn second_attempts_stay_within_their_share() {
    let late = [Answers::Late(LATE), Answers::Late(LATE)];
    let scene = Scene::open(late, json!({"share": 0.1}), json!({})).await;
    let asked = (0..20).map(|_| scene.ask(json!({})));
    join_all(asked).await;
    assert_eq!(scene.seen(), 22);
    assert_eq!(scene.count("reason=\"budget\"").await, 18);
    scene.is_over().await;
}

/// The second replica answers 500, the first one serves: the fault was the second one's.
#[tokio::test]
async fn a_fault_that_the_other_replica_contradicts_counts() {
    let mut shown = 0;
    for _ in 0..20 {
        let answers = [
            Answers::Late(Duration::from_millis(200)),
            Answers::Status(500, "bug"),
        ];
        let fleet = json!({"fleet": {"breaker": {"failures": 1, "open_s": 600}}});
        let scene = Scene::open(answers, json!({}), fleet).await;
        scene.ask(json!({})).await;
        // else the one that fails was the first, and none was hedged
        if scene.count("outcome=\"lost\"").await == 1 {
            shown += 1;
            for _ in 0..5 {
                scene.ask(json!({})).await;
            }
            assert_eq!(scene.replicas[1].seen().len(), 1);
        }
        if shown == 2 {
            return;
        }
    }
    panic!("none was hedged");
}
