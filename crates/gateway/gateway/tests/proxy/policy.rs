//! Which replica: prefixes, sessions, models, keys.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::replica::{Answers, Replica};
use crate::{Door, chat, until_shown};

async fn replicas(count: usize) -> Vec<Replica> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Replica::start(Answers::Whole, &["m"]).await);
    }
    all
}

/// Requests that share a long beginning go where it has been computed; others spread.
#[tokio::test]
async fn shared_prefixes_stay_together() {
    let all = replicas(4).await;
    let door = Door::open(&all.iter().collect::<Vec<_>>(), json!({})).await;
    for turn in 0..6 {
        for tenant in 0..8 {
            let prompt = format!("tenant {tenant}: {}", format!("{tenant} ").repeat(4000));
            let answer = door.post(&chat(&format!("{prompt} question {turn}"))).await;
            assert_eq!(answer.status, 200);
        }
    }
    // five of six turns find all of their prompt but the end; the first ones, whose tokens are
    // guessed, count more
    let page = door.get("/metrics").await.text();
    let count = |name: &str| {
        let line = page.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let cached = count("penstock:gateway_cached_tokens_expected_total")
        / count("penstock:gateway_prompt_tokens_total");
    assert!((0.5..0.85).contains(&cached), "{cached}");
    let mut homes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (place, replica) in all.iter().enumerate() {
        for seen in replica.seen() {
            let body: Value = serde_json::from_slice(&seen.body).unwrap();
            let text = body["messages"][0]["content"].as_str().unwrap().to_owned();
            homes.entry(text[..9].to_owned()).or_default().push(place);
        }
    }
    assert_eq!(homes.len(), 8);
    for (tenant, places) in homes {
        assert_eq!(places.len(), 6);
        assert!(
            places.iter().all(|place| *place == places[0]),
            "{tenant}: {places:?}"
        );
    }
}

/// What a replica had computed is gone with its process: another one may compute it as well.
#[tokio::test]
async fn a_replica_that_restarts_has_nothing_cached() {
    let all = replicas(2).await;
    let page = |start: u32, waiting: u32| {
        format!("process_start_time_seconds {start}\nvllm:num_requests_waiting {waiting}\n")
    };
    all.iter().for_each(|one| one.metrics(page(1000, 0)));
    let profile = json!({"scorers": [{"name": "prefix", "weight": 2}, {"name": "queue"}]});
    let fleet = json!({"slow_start_s": 0, "metrics": {"period_s": 0.01}});
    let backends: Vec<Value> = all.iter().map(|one| json!({"url": one.url})).collect();
    let pool = json!({"name": "p", "source": {"static": backends}, "profile": profile,
                      "fleet": fleet});
    let door = Door::with(json!({"pools": [pool]})).await;
    let body = chat(&"once ".repeat(4000));
    assert_eq!(door.post(&body).await.status, 200);
    let home = usize::from(all[0].seen().is_empty());
    // the prefix weighs more than a queue
    // more than what is in flight from here
    all[home].metrics(page(1000, 50));
    let address = all[home].url.strip_prefix("http://").unwrap();
    let queued = format!("pool=\"p\",replica=\"{address}\"}} 50\n");
    until_shown("the queue", async || {
        door.get("/metrics").await.text().contains(&queued)
    })
    .await;
    assert_eq!(door.post(&body).await.status, 200);
    assert_eq!(all[home].seen().len(), 2);
    all[home].metrics(page(2000, 50));
    until_shown("the restart", async || {
        assert_eq!(door.post(&body).await.status, 200);
        !all[1 - home].seen().is_empty()
    })
    .await;
}

#[tokio::test]
async fn sessions_stay_where_they_began() {
    let all = replicas(3).await;
    let profile = json!({"scorers": [{"name": "session"}]});
    let backends: Vec<Value> = all.iter().map(|one| json!({"url": one.url})).collect();
    let pool = json!({"name": "p", "source": {"static": backends}, "profile": profile,
                      "fleet": {"slow_start_s": 0}});
    let door = Door::with(json!({"pools": [pool]})).await;
    for session in ["a", "b", "c", "d"] {
        let headers = [("x-session-id", session)];
        for _ in 0..5 {
            let body = chat("x").to_string();
            assert_eq!(
                door.send("/v1/chat/completions", &headers, body)
                    .await
                    .status,
                200
            );
        }
    }
    for replica in &all {
        let count = |name: &str| {
            let seen = replica.seen();
            seen.iter()
                .filter(|one| one.headers["x-session-id"] == name)
                .count()
        };
        for session in ["a", "b", "c", "d"] {
            assert!([0, 5].contains(&count(session)), "{session}");
        }
    }
}

/// Two replicas, of which the first is busy, behind this scorer alone; the number of requests that
/// each of them got when four were sent with each header.
async fn sent_with(scorer: &str, headers: &[(&'static str, &'static str)]) -> Vec<[usize; 2]> {
    let all = replicas(2).await;
    all[0].metrics("vllm:num_requests_running 40\n");
    all[1].metrics("vllm:num_requests_running 0\n");
    let backends: Vec<Value> = all.iter().map(|one| json!({"url": one.url})).collect();
    let pool = json!({"name": "p", "source": {"static": backends},
        "profile": {"scorers": [{"name": scorer}]},
        "fleet": {"slow_start_s": 0, "metrics": {"period_s": 0.01}}});
    let objectives = json!([{"name": "chat", "priority": 5}, {"name": "batch", "priority": -1}]);
    let door = Door::with(json!({"pools": [pool], "objectives": objectives})).await;
    let busy = format!("{}\"}} 40", all[0].url.strip_prefix("http://").unwrap());
    until_shown("the load", async || {
        door.get("/metrics").await.text().contains(&busy)
    })
    .await;
    let mut found = Vec::new();
    for header in headers {
        let before = [all[0].seen().len(), all[1].seen().len()];
        for _ in 0..4 {
            let body = chat("x").to_string();
            let answer = door.send("/v1/chat/completions", &[*header], body).await;
            assert_eq!(answer.status, 200);
        }
        found.push([0, 1].map(|at| all[at].seen().len() - before[at]));
    }
    found
}

/// A decode step takes 10 ms, and half a millisecond more for each further sequence, until answers
/// say otherwise: 30 ms on the busy replica.
#[tokio::test]
async fn a_target_for_tpot_chooses_the_replica_with_more_headroom() {
    let headers = [("x-slo-tpot-ms", "20"), ("x-llm-d-slo-tpot-ms", "20")];
    assert_eq!(sent_with("slo", &headers).await, [[0, 4], [0, 4]]);
}

#[tokio::test]
async fn critical_requests_get_the_replica_that_sheddable_ones_leave_free() {
    let headers = [
        ("x-gateway-inference-objective", "batch"),
        ("x-gateway-inference-objective", "chat"),
    ];
    assert_eq!(sent_with("criticality", &headers).await, [[4, 0], [0, 4]]);
}

/// Models of several pools are one list, and a request goes to its model's pool.
#[tokio::test]
async fn models_are_where_replicas_list_them() {
    let first = Replica::start(Answers::Whole, &["a", "both"]).await;
    let second = Replica::start(Answers::Whole, &["b", "both"]).await;
    let pool = |name: &str, replica: &Replica| {
        json!({"name": name, "source": {"static": [{"url": replica.url}]},
               "fleet": {"slow_start_s": 0}})
    };
    let pools = json!({"pools": [pool("one", &first), pool("two", &second)]});
    let door = Door::with(pools).await;
    let listed = door.get("/v1/models").await.json();
    let listed: Vec<&str> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap())
        .collect();
    assert_eq!(listed, ["a", "b", "both"]);
    assert_eq!(door.get("/v1/models/b").await.status, 200);
    assert_eq!(door.get("/v1/models/c").await.status, 404);
    let ask = |model: &str| json!({"model": model, "prompt": "x"});
    for model in ["a", "b", "b"] {
        assert_eq!(door.post(&ask(model)).await.status, 200);
    }
    assert_eq!((first.seen().len(), second.seen().len()), (1, 2));
    let answer = door.post(&ask("c")).await;
    assert_eq!(answer.status, 404);
    assert!(
        answer.text().contains("Served here: a, b, both"),
        "{}",
        answer.text()
    );
}

/// Weights of targets are shares, and the body asks for the target's model.
#[tokio::test]
async fn a_canary_gets_its_share_under_its_own_name() {
    let old = Replica::start(Answers::Whole, &["v1"]).await;
    let new = Replica::start(Answers::Whole, &["v2"]).await;
    let pool = |name: &str, replica: &Replica| {
        json!({"name": name, "source": {"static": [{"url": replica.url}]},
               "fleet": {"slow_start_s": 0}})
    };
    let targets = json!([{"pool": "old", "model": "v1", "weight": 9},
                         {"pool": "new", "model": "v2", "weight": 1}]);
    let door = Door::with(json!({
        "pools": [pool("old", &old), pool("new", &new)],
        "models": [{"name": "chat", "targets": targets}],
    }))
    .await;
    for _ in 0..50 {
        let answer = door
            .post(&json!({"n": 1, "model": "chat", "prompt": "x"}))
            .await;
        assert_eq!(answer.status, 200);
    }
    assert_eq!((old.seen().len(), new.seen().len()), (45, 5));
    assert_eq!(new.seen()[0].body, r#"{"n":1,"model":"v2","prompt":"x"}"#);
    assert!(door.get("/v1/models").await.text().contains("\"chat\""));
    let answer = door.post(&json!({"model": "chat", "prompt": "x"})).await;
    let answer = answer.json();
    assert_eq!(answer["model"], "chat", "as it was asked for");
    assert_ne!(answer["echo"]["model"], "chat", "no other member");
}

/// What the gateway asks by itself carries the replicas' key, and only that.
#[tokio::test]
async fn replicas_behind_a_key_list_their_models() {
    for key in ["api_keys", "backend_api_key"] {
        let replica = Replica::start(Answers::Whole, &["m"]).await;
        replica.wants("theirs");
        let mut keys = json!({"backend_api_key": "theirs"});
        if key == "api_keys" {
            keys["api_keys"] = json!(["ours"]);
        }
        let page = "vllm:num_requests_waiting 17\n";
        replica.metrics(page);
        let door = Door::open(&[&replica], keys).await;
        until_shown("its load", async || {
            door.get("/metrics").await.text().contains("} 17\n")
        })
        .await;
        let headers = [("authorization", "Bearer ours")];
        let answer = door.get_with("/v1/models", &headers).await;
        assert_eq!(answer.json()["data"][0]["id"], "m");
        let body = chat("x").to_string();
        let answer = door.send("/v1/chat/completions", &headers, body).await;
        assert_eq!(answer.status, 200);
    }
}

/// Who lists no models may serve any, but not those that others list.
#[tokio::test]
async fn a_server_that_lists_no_models_gets_none_of_others() {
    let lists = Replica::start(Answers::Whole, &["m"]).await;
    let silent = Replica::start(Answers::Status(404, "no"), &[]).await;
    silent.wants("another");
    let door = Door::open(&[&lists, &silent], json!({})).await;
    for n in 0..30 {
        assert_eq!(door.post(&chat(&n.to_string())).await.status, 200);
    }
    assert_eq!(silent.seen().len(), 0);
    // alone it serves what is asked for, by another pool too
    silent.answers(Answers::Whole);
    let pool = |name: &str, replica: &Replica| {
        json!({"name": name, "source": {"static": [{"url": replica.url}]},
               "fleet": {"slow_start_s": 0}})
    };
    let pools = json!([pool("unknown", &silent), pool("known", &lists)]);
    let door = Door::with(json!({"pools": pools})).await;
    let headers = [("authorization", "Bearer another")];
    for (model, replica) in [("m", &lists), ("other", &silent)] {
        let before = replica.seen().len();
        let body = json!({"model": model, "messages": []}).to_string();
        let answer = door.send("/v1/chat/completions", &headers, body).await;
        assert_eq!(
            (answer.status.as_u16(), replica.seen().len()),
            (200, before + 1)
        );
    }
}

#[tokio::test]
async fn keys_are_checked_here_and_replaced() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let keys = json!({"api_keys": ["secret"], "backend_api_key": "theirs"});
    let door = Door::open(&[&replica], keys).await;
    assert_eq!(door.post(&chat("x")).await.status, 401);
    let headers = [("authorization", "Bearer secret")];
    let answer = door
        .send("/v1/chat/completions", &headers, chat("x").to_string())
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(replica.seen()[0].headers["authorization"], "Bearer theirs");
    assert_eq!(door.get("/health").await.status, 200);
}

/// The decision can be asked for, and is in no answer otherwise.
#[tokio::test]
async fn decisions_explain_themselves() {
    let all = replicas(2).await;
    let both: Vec<&Replica> = all.iter().collect();
    let door = Door::open(&both, json!({"explain": true})).await;
    let answer = door.post(&chat("x")).await;
    let decision = answer.headers["x-penstock-decision"]
        .to_str()
        .unwrap()
        .to_owned();
    let address = all[0].url.strip_prefix("http://").unwrap();
    let other = all[1].url.strip_prefix("http://").unwrap();
    assert!(
        decision.starts_with(address) || decision.starts_with(other),
        "{decision}"
    );
    let words = "as good as the next, drawn at random (0 running, 0 waiting) of 2";
    assert!(decision.ends_with(words), "{decision}");
    let body = chat("x").to_string();
    let headers = [("x-gateway-inference-fairness-id", "me")];
    let explained = door.send("/route/explain", &headers, body).await.json();
    assert_eq!(explained["pool"], "p");
    assert_eq!(explained["tenant"], "me");
    let said = explained["decision"].as_str().unwrap();
    assert!(said.contains("(0 running, 0 waiting) of 2"), "{said}");
    let ranked = explained["replicas"].as_array().unwrap();
    assert_eq!(ranked.len(), 2);
    assert_eq!(ranked[0]["scores"][0]["name"], "cost");
    assert!(ranked[0]["total"].as_f64() >= ranked[1]["total"].as_f64());
    let sent = all[0].seen().len() + all[1].seen().len();
    assert_eq!(sent, 1, "what is explained is not sent");
    let silent = Door::open(&both, json!({})).await;
    let refused = silent.send("/route/explain", &[], "{}").await;
    assert_eq!(refused.status, 404);
    let answer = silent.post(&chat("x")).await;
    assert!(!answer.headers.contains_key("x-penstock-decision"));
}
