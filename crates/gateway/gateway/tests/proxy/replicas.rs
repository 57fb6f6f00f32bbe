//! Which replica answers, and what the gateway shows of its replicas.

use std::time::Duration;

use serde_json::{Value, json};

use crate::replica::{Answers, Replica};
use crate::{Answer, Door, chat, until_shown};

const NAMES: &str = "x-penstock-replica";

fn address(replica: &Replica) -> &str {
    replica.url.strip_prefix("http://").unwrap()
}

fn named(answer: &Answer) -> Option<&str> {
    answer.headers.get(NAMES).map(|name| name.to_str().unwrap())
}

async fn page(door: &Door) -> Value {
    door.get("/replicas").await.json()
}

/// The row of a replica.
fn row<'a>(page: &'a Value, replica: &Replica) -> &'a Value {
    let rows = page["pools"][0]["replicas"].as_array().unwrap();
    let row = rows.iter().find(|row| row["address"] == address(replica));
    row.unwrap()
}

#[tokio::test]
async fn an_answer_names_the_replica_that_gave_it() {
    let good = Replica::start(Answers::Whole, &["m"]).await;
    let full = Replica::start(Answers::Status(503, "full"), &["m"]).await;
    let door = Door::open(&[&good, &full], json!({})).await;
    for n in 0..10 {
        let answer = door.post(&chat(&n.to_string())).await;
        assert_eq!(
            (answer.status.as_u16(), named(&answer)),
            (200, Some(address(&good)))
        );
    }
    assert!(!full.seen().is_empty(), "it was tried before");
    // a refusal that the client gets is some replica's, too
    good.answers(Answers::Status(503, "full"));
    let refused = door.post(&chat("x")).await;
    assert_eq!(refused.status, 503);
    let all = [Some(address(&good)), Some(address(&full))];
    assert!(all.contains(&named(&refused)), "{:?}", refused.headers);
    assert_eq!(
        named(&door.get("/v1/models").await),
        None,
        "the gateway's own"
    );
}

#[tokio::test]
async fn the_name_may_be_short_or_absent() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let short = Door::open(&[&replica], json!({"replica_header": "name"})).await;
    let answer = short.post(&chat("x")).await;
    let name = row(&page(&short).await, &replica)["name"].clone();
    assert_eq!(named(&answer), name.as_str());
    assert_eq!(name.as_str().unwrap().len(), 8);
    let labelled = json!({"url": replica.url, "labels": {"name": "blue"}});
    let pool = json!({"name": "p", "source": {"static": [labelled]}});
    let door = Door::with(json!({"pools": [pool], "replica_header": "name"})).await;
    assert_eq!(named(&door.post(&chat("x")).await), Some("blue"));
    let silent = Door::open(&[&replica], json!({"replica_header": "none"})).await;
    assert_eq!(named(&silent.post(&chat("x")).await), None);
}

/// The first gateway's replica is a gateway, whose own replicas are not the client's business.
#[tokio::test]
async fn a_gateway_behind_a_gateway_is_the_replica() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let inner = Door::open(&[&replica], json!({"explain": true})).await;
    let behind = |more: Value| {
        let source = json!({"static": [{"url": inner.serving.url}]});
        let mut config = json!({"pools": [{"name": "p", "source": source}]});
        crate::merge(&mut config, more);
        Door::with(config)
    };
    let outer = behind(json!({})).await;
    let answer = outer.post(&chat("x")).await;
    assert_eq!(named(&answer), inner.serving.url.strip_prefix("http://"));
    assert!(!answer.headers.contains_key("x-penstock-decision"));
    let silent = behind(json!({"replica_header": "none"})).await;
    assert_eq!(named(&silent.post(&chat("x")).await), None);
}

#[tokio::test]
async fn replicas_are_shown_with_health_load_and_picks() {
    let busy = Replica::start(Answers::Whole, &["m"]).await;
    busy.metrics(
        "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\n\
         vllm:kv_cache_usage_perc 0.25\n",
    );
    let dead = Replica::start(Answers::Whole, &["m"]).await;
    let door = Door::open(&[&busy, &dead], json!({})).await;
    let dead_address = address(&dead).to_owned();
    drop(dead);
    until_shown("the load, and the death", async || {
        let page = page(&door).await;
        let rows = page["pools"][0]["replicas"].as_array().unwrap();
        let dead = rows.iter().find(|row| row["address"] == dead_address);
        row(&page, &busy)["load"]["source"] == "polled" && dead.unwrap()["condition"] == "unhealthy"
    })
    .await;
    for n in 0..40 {
        assert_eq!(door.post(&chat(&n.to_string())).await.status, 200);
    }
    // a report that came beside requests of this gateway counts those as its own
    until_shown("a report from after them", async || {
        row(&page(&door).await, &busy)["load"]["waiting"] == 1
    })
    .await;
    let page = page(&door).await;
    let busy_row = row(&page, &busy);
    assert_eq!(busy_row["models"], json!(["m"]));
    assert_eq!(busy_row["condition"], "ready");
    assert_eq!(busy_row["takes_requests"], true);
    assert_eq!(busy_row["reason"], Value::Null);
    assert_eq!(busy_row["breaker"], "closed");
    assert_eq!(busy_row["in_flight"], 0);
    assert_eq!(busy_row["picks"], 40);
    assert_eq!(busy_row["errors"], 0);
    assert_eq!(busy_row["last_error"], Value::Null);
    let load = &busy_row["load"];
    assert_eq!(load["engine"], "vllm");
    assert_eq!((&load["running"], &load["waiting"]), (&json!(2), &json!(1)));
    assert_eq!(load["kv_use"], 0.25);
    assert!(load["age_s"].as_f64().unwrap() < 60.0);
    let rows = page["pools"][0]["replicas"].as_array().unwrap();
    let dead_row = rows
        .iter()
        .find(|row| row["address"] == dead_address)
        .unwrap();
    assert_eq!(dead_row["takes_requests"], false);
    let reason = dead_row["reason"].as_str().unwrap();
    assert!(reason.starts_with("its health check fails: "), "{reason}");
    let error = &dead_row["last_error"];
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .starts_with("health check: ")
    );
    let age = page["time"].as_f64().unwrap() - error["time"].as_f64().unwrap();
    assert!((0.0..60.0).contains(&age), "{age}");
    assert_eq!(dead_row["load"]["kv_use"], Value::Null);
    let picks = page["picks"].as_array().unwrap();
    assert_eq!(picks.len(), 32, "the last ones");
    for pair in picks.windows(2) {
        assert!(
            pair[0]["time"].as_f64() >= pair[1]["time"].as_f64(),
            "newest first"
        );
    }
    let last = &picks[0];
    assert_eq!(
        (&last["pool"], &last["replica"]),
        (&json!("p"), &busy_row["address"])
    );
    assert_eq!(last["name"], busy_row["name"]);
    let decision = last["decision"].as_str().unwrap();
    let start = format!("{}: the only one left (2 running, ", address(&busy));
    assert!(decision.starts_with(&start), "{decision}");
    assert!(
        decision.ends_with(", KV 25%); 1 left out: unhealthy"),
        "{decision}"
    );
    assert_eq!(last["scores"][0]["name"], "cost");
}

#[tokio::test]
async fn failures_are_counted_and_the_last_one_is_kept() {
    let breaks = Replica::start(Answers::Breaks(2), &["m"]).await;
    let pool = json!({
        "name": "p",
        "source": {"static": [{"url": breaks.url}]},
        "fleet": {"breaker": {"failures": 2, "open_s": 30}, "slow_start_s": 0},
    });
    let door = Door::with(json!({"pools": [pool]})).await;
    let mut body = chat("x");
    body["stream"] = json!(true);
    for _ in 0..2 {
        assert!(door.post(&body).await.text().contains("error"));
    }
    let shown = page(&door).await;
    let row = row(&shown, &breaks);
    assert_eq!((&row["errors"], &row["picks"]), (&json!(2), &json!(2)));
    assert_eq!(
        (&row["condition"], &row["breaker"]),
        (&json!("ejected"), &json!("open"))
    );
    let reason = row["reason"].as_str().unwrap();
    assert!(
        reason.contains("one after another; a trial in "),
        "{reason}"
    );
    let message = row["last_error"]["message"].as_str().unwrap();
    assert!(message.starts_with("broke off its answer: "), "{message}");
    let metrics = door.get("/metrics").await.text();
    let labels = format!(
        "{{version=\"test\",pool=\"p\",replica=\"{}\"}}",
        address(&breaks)
    );
    for (name, value) in [
        ("picks_total", 2),
        ("errors_total", 2),
        ("in_flight", 0),
        ("breaker_open", 1),
    ] {
        let line = format!("penstock:gateway_replica_{name}{labels} {value}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[tokio::test]
async fn open_requests_and_the_rate_of_tokens_are_shown() {
    let slow = Replica::start(Answers::Events(1000, Duration::from_millis(20)), &["m"]).await;
    let door = Door::open(&[&slow], json!({})).await;
    let mut body = chat("x");
    body["stream"] = json!(true);
    let answer = door.begin("/v1/chat/completions", &[], body.to_string());
    let answer = answer.await;
    let reading = tokio::spawn(http_body_util::BodyExt::collect(answer.into_body()));
    until_shown("a rate", async || {
        let shown = page(&door).await;
        let row = row(&shown, &slow);
        row["in_flight"] == 1 && row["output_tokens_per_s"].as_f64().unwrap() > 0.0
    })
    .await;
    assert_eq!(page(&door).await["requests_open"], 1);
    reading.abort();
}

#[tokio::test]
async fn the_page_needs_a_key_where_the_gateway_has_keys() {
    let replica = Replica::start(Answers::Whole, &["m"]).await;
    let door = Door::open(&[&replica], json!({"api_keys": ["secret"]})).await;
    assert_eq!(door.get("/replicas").await.status, 401);
    let headers = [("authorization", "Bearer secret")];
    assert_eq!(door.get_with("/replicas", &headers).await.status, 200);
    assert_eq!(door.ask("POST", "/replicas", "").await.status, 401);
}
