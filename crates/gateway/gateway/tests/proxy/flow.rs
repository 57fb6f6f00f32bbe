//! Queues and refusals before a replica that takes one request at a time.

use std::time::Duration;

use serde_json::{Value, json};

use crate::replica::{Answers, Replica};
use crate::{Door, chat, until};

const SLOW: Answers = Answers::Events(5, Duration::from_millis(40));

async fn door(replica: &Replica, queue: bool) -> Door {
    let flow = json!({"queue": queue, "in_flight": 1, "max_waiting": 3});
    let pool = json!({"name": "p", "source": {"static": [{"url": replica.url}]},
                      "fleet": {"slow_start_s": 0}, "flow": flow});
    let objectives = json!([{"name": "urgent", "priority": 10}, {"name": "batch", "priority": -1}]);
    let models = json!([{"name": "cheap", "priority": -1, "targets": [{"pool": "p"}]}]);
    Door::with(json!({"pools": [pool], "objectives": objectives, "models": models})).await
}

fn metric(page: &str, name: &str) -> f64 {
    let line = page.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value.map_or(0.0, |value| value.parse().unwrap())
}

async fn until_metric(door: &Door, name: &str, wanted: f64) {
    for _ in 0..2000 {
        let page = door.get("/metrics").await.text();
        if metric(&page, name) == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{name} never was {wanted}");
}

/// What all replicas refuse waits for one of them, and none is lost: the load that they report is
/// old by a poll when a burst comes.
#[tokio::test]
async fn a_burst_that_replicas_refuse_waits_for_them() {
    let mut all = Vec::new();
    for _ in 0..3 {
        let room = Answers::Room(4, Duration::from_millis(30));
        let replica = Replica::start(room, &["m"]).await;
        replica.metrics("vllm:num_requests_waiting 0\n");
        all.push(replica);
    }
    let backends: Vec<Value> = all.iter().map(|one| json!({"url": one.url})).collect();
    let pool = |queue: bool| {
        json!({"name": "p", "source": {"static": backends}, "fleet": {"slow_start_s": 0},
               "flow": {"queue": queue}})
    };
    let door = Door::with(json!({"pools": [pool(true)]})).await;
    let bodies: Vec<Value> = (0..150).map(|n| chat(&n.to_string())).collect();
    let answers = futures_util::future::join_all(bodies.iter().map(|body| door.post(body))).await;
    let served = answers.iter().filter(|one| one.status == 200).count();
    assert_eq!(served, 150);
    let page = door.get("/metrics").await.text();
    assert!(metric(&page, "penstock:gateway_attempts_lost_total") > 0.0);
    // without a queue they are refused, by the replicas' own words
    let door = Door::with(json!({"pools": [pool(false)]})).await;
    let answers = futures_util::future::join_all(bodies.iter().map(|body| door.post(body))).await;
    let refused = answers.iter().filter(|one| one.status == 503).count();
    assert!(refused > 0 && answers.iter().all(|one| one.status != 429));
}

/// One that refuses always is asked once in a while, and its client learns in time.
#[tokio::test]
async fn a_request_waits_no_longer_than_it_may() {
    let replica = Replica::start(Answers::Status(503, "full"), &["m"]).await;
    let flow = json!({"queue": true, "max_wait_s": 1.5});
    let pool = json!({"name": "p", "source": {"static": [{"url": replica.url}]},
                      "fleet": {"slow_start_s": 0}, "flow": flow});
    let door = Door::with(json!({"pools": [pool]})).await;
    let began = std::time::Instant::now();
    assert_eq!(door.post(&chat("x")).await.status, 429);
    assert!(began.elapsed() >= Duration::from_millis(1500));
    assert!((2..=3).contains(&replica.seen().len()));
}

/// Another model's replica has room: a request that its own refuses does not ask without a pause.
#[tokio::test]
async fn a_model_without_room_is_asked_less_and_less_often() {
    let free = Replica::start(Answers::Whole, &["other"]).await;
    let full = Replica::start(Answers::Status(503, "full"), &["m"]).await;
    let flow = json!({"queue": true, "max_wait_s": 1.5});
    let pool = json!({"name": "p", "source": {"static": [{"url": free.url}, {"url": full.url}]},
                      "fleet": {"slow_start_s": 0}, "flow": flow});
    let door = Door::with(json!({"pools": [pool]})).await;
    assert_eq!(door.post(&chat("x")).await.status, 429);
    let asked = full.seen().len();
    assert!((3..=10).contains(&asked), "{asked}");
}

/// Waiting is for room: one replica that has none does not hold what another one fails.
#[tokio::test]
async fn a_request_that_one_refuses_and_another_fails_does_not_wait() {
    let full = Replica::start(Answers::Status(503, "full"), &["m"]).await;
    let broken = Replica::start(Answers::Status(502, "down"), &["m"]).await;
    let flow = json!({"queue": true, "max_wait_s": 30});
    let pool = json!({"name": "p", "source": {"static": [{"url": full.url}, {"url": broken.url}]},
                      "fleet": {"slow_start_s": 0}, "flow": flow});
    let door = Door::with(json!({"pools": [pool]})).await;
    let began = std::time::Instant::now();
    let status = door.post(&chat("x")).await.status.as_u16();
    assert!(matches!(status, 502 | 503), "{status}");
    assert!(began.elapsed() < Duration::from_secs(10));
    assert_eq!((full.seen().len(), broken.seen().len()), (1, 1));
}

const WAITING: &str = r#"penstock:gateway_queue_requests{version="test",pool="p",priority="0"}"#;
const SHED: &str = r#"penstock:gateway_queue_refused_total{version="test",pool="p",reason="#;

async fn ask(door: &Door, objective: &str, tenant: &str) -> crate::Answer {
    let headers = [
        ("x-gateway-inference-objective", objective),
        ("x-gateway-inference-fairness-id", tenant),
    ];
    let body = chat(&format!("{objective} of {tenant}")).to_string();
    door.send("/v1/chat/completions", &headers, body).await
}

fn order(replica: &Replica) -> Vec<String> {
    let text = |body: &[u8]| {
        let body: Value = serde_json::from_slice(body).unwrap();
        body["messages"][0]["content"].as_str().unwrap().to_owned()
    };
    replica.seen().iter().map(|one| text(&one.body)).collect()
}

#[tokio::test]
async fn a_saturated_pool_is_queued_for_by_priority_and_tenant() {
    let replica = Replica::start(SLOW, &["m"]).await;
    let door = door(&replica, true).await;
    let late = async {
        until("the first is there", || replica.open() == 1).await;
        let queued = |number: f64| until_metric(&door, WAITING, number);
        let a2 = async {
            queued(1.0).await;
            ask(&door, "", "a").await
        };
        let b1 = async {
            queued(2.0).await;
            ask(&door, "", "b").await
        };
        let urgent = async {
            queued(3.0).await;
            let full = ask(&door, "", "c").await;
            assert_eq!(full.status, 429, "as many as may wait");
            ask(&door, "urgent", "d").await
        };
        tokio::join!(ask(&door, "", "a"), a2, b1, urgent)
    };
    replica.answers(Answers::Hangs);
    let headers = [("x-gateway-inference-fairness-id", "a")];
    let body = chat("first").to_string();
    let first = door.begin("/v1/completions", &headers, body);
    let first = async {
        let all_wait = async {
            let urgent = WAITING.replace("\"0\"", "\"10\"");
            until_metric(&door, &urgent, 1.0).await;
            replica.answers(SLOW);
        };
        tokio::select! {
            _ = first => panic!("it hangs"),
            () = all_wait => {}
        }
    };
    let ((), answers) = tokio::join!(first, late);
    for answer in [answers.0, answers.1, answers.2, answers.3] {
        assert_eq!(answer.status, 200);
        assert!(answer.text().ends_with("data: [DONE]\n\n"));
    }
    let wanted = ["first", "urgent of d", " of a", " of b", " of a"];
    assert_eq!(order(&replica), wanted);
    let page = door.get("/metrics").await.text();
    assert_eq!(metric(&page, &format!("{SHED}\"full\"")), 1.0);
    let waits = "penstock:gateway_queue_wait_seconds_count";
    assert_eq!(metric(&page, waits), 4.0);
}

#[tokio::test]
async fn sheddable_requests_are_refused_while_others_are_sent_on() {
    let replica = Replica::start(Answers::Hangs, &["m"]).await;
    let door = door(&replica, false).await;
    let idle = async {
        until("two are there", || replica.open() == 2).await;
        let batch = ask(&door, "batch", "").await;
        let cheap = door.post(&json!({"model": "cheap", "prompt": "x"})).await;
        [batch, cheap]
    };
    let refused = tokio::select! {
        refused = idle => refused,
        _ = ask(&door, "", "") => panic!("the first was answered"),
        _ = ask(&door, "urgent", "") => panic!("the second was answered"),
    };
    for answer in refused {
        assert_eq!(answer.status, 429);
        assert_eq!(answer.headers["retry-after"], "1");
        assert_eq!(answer.json()["error"]["code"], "saturated");
    }
    replica.answers(Answers::Whole);
    until("the pool is free", || door.gateway().open_requests() == 0).await;
    assert_eq!(ask(&door, "batch", "").await.status, 200);
    let page = door.get("/metrics").await.text();
    assert_eq!(metric(&page, &format!("{SHED}\"sheddable\"")), 2.0);
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_is_not_sent_on() {
    let replica = Replica::start(Answers::Hangs, &["m"]).await;
    let door = door(&replica, true).await;
    let waits = async {
        until("the first is there", || replica.open() == 1).await;
        tokio::select! {
            _ = ask(&door, "", "leaves") => panic!("it was answered"),
            () = until_metric(&door, WAITING, 1.0) => {}
        }
        until_metric(&door, WAITING, 0.0).await;
    };
    tokio::select! {
        () = waits => {}
        _ = ask(&door, "", "first") => panic!("the first was answered"),
    }
    replica.answers(Answers::Whole);
    assert_eq!(ask(&door, "", "last").await.status, 200);
    assert_eq!(order(&replica), [" of first", " of last"]);
}
