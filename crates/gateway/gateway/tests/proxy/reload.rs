//! Another configuration while requests go through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use penstock_gateway::Config;
use serde_json::{Value, json};

use crate::replica::{Answers, Replica};
use crate::{Door, chat, merge, until};

fn pool(name: &str, replicas: &[&Replica]) -> Value {
    let backends: Vec<Value> = replicas.iter().map(|one| json!({"url": one.url})).collect();
    json!({"name": name, "source": {"static": backends}, "fleet": {"slow_start_s": 0}})
}

async fn reload(door: &Door, more: Value) -> Result<(), String> {
    let mut config = json!({"host": "127.0.0.1", "port": 0, "version": "test"});
    merge(&mut config, more);
    let config = Config::from_json(&config.to_string())?;
    let done = door.gateway().reload(config).await;
    done.map_err(|error| error.to_string())
}

/// Tried under load: a list of other replicas only, a part of a list, another profile, flow
/// control, a new pool with a rule, the old pool taken away.
#[tokio::test]
async fn no_request_is_lost_while_everything_changes() {
    let slow = Answers::Events(3, Duration::from_millis(15));
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(Replica::start(slow.clone(), &["m"]).await);
    }
    let (a, b, c, d, e) = (&all[0], &all[1], &all[2], &all[3], &all[4]);
    let door = Arc::new(Door::with(json!({"pools": [pool("p", &[a, b])]})).await);
    let stop = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let (door, stop, served) = (door.clone(), stop.clone(), served.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let answer = door.post(&chat(&format!("{number}"))).await;
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    assert!(answer.text().ends_with("data: [DONE]\n\n"));
                    served.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let mut profiled = pool("p", &[c]);
    profiled["profile"] = json!({"scorers": [{"name": "running"}], "picker": "round-robin"});
    profiled["flow"] = json!({"queue": true});
    let rule = json!([{"name": "m", "targets": [{"pool": "q"}], "priority": 2}]);
    let steps = [
        json!({"pools": [pool("p", &[c, d])]}),
        json!({"pools": [profiled]}),
        json!({"pools": [pool("p", &[c]), pool("q", &[b, e])], "models": rule}),
        json!({"pools": [pool("q", &[e])]}),
    ];
    for step in steps {
        let before = served.load(Ordering::SeqCst);
        reload(&door, step).await.unwrap();
        until("further requests", || {
            served.load(Ordering::SeqCst) > before + 30
        })
        .await;
    }
    let seen = a.seen().len() + b.seen().len() + c.seen().len() + d.seen().len();
    let before = served.load(Ordering::SeqCst);
    until("the last", || served.load(Ordering::SeqCst) > before + 30).await;
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let after = a.seen().len() + b.seen().len() + c.seen().len() + d.seen().len();
    assert_eq!(seen, after, "only the last one is left");
}

/// Replicas that stay keep what is known of them: where prefixes are.
#[tokio::test]
async fn prefixes_stay_where_they_are() {
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(Replica::start(Answers::Whole, &["m"]).await);
    }
    let door = Door::with(json!({"pools": [pool("p", &[&all[0], &all[1], &all[2]])]})).await;
    let prompt = |tenant: usize| chat(&format!("tenant {tenant}: ").repeat(3000));
    for tenant in 0..6 {
        assert_eq!(door.post(&prompt(tenant)).await.status, 200);
    }
    let homes =
        |all: &[Replica]| -> Vec<usize> { all[..3].iter().map(|one| one.seen().len()).collect() };
    let before = homes(&all);
    let list = [&all[0], &all[1], &all[2], &all[3]];
    reload(&door, json!({"pools": [pool("p", &list)]}))
        .await
        .unwrap();
    let ready = || async { door.get("/metrics").await.text() };
    while ready().await.matches("gateway_replica_ready{").count() < 4 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for tenant in 0..6 {
        assert_eq!(door.post(&prompt(tenant)).await.status, 200);
    }
    let twice: Vec<usize> = before.iter().map(|count| 2 * count).collect();
    assert_eq!(homes(&all), twice);
}

#[tokio::test]
async fn a_wrong_configuration_changes_nothing() {
    let (one, two) = (
        Replica::start(Answers::Whole, &["m"]).await,
        Replica::start(Answers::Whole, &["n"]).await,
    );
    let door = Door::with(json!({"pools": [pool("p", &[&one])]})).await;
    let mut wrong = pool("q", &[&two]);
    wrong["profile"] = json!({"scorers": [{"name": "quue"}]});
    let wrong = json!({"pools": [pool("p", &[&two]), wrong]});
    let error = reload(&door, wrong).await.unwrap_err();
    assert!(error.contains("quue"), "{error}");
    let missing = json!({"name": "p", "source": {"file": "/nonexistent"}});
    let error = reload(&door, json!({"pools": [missing]}))
        .await
        .unwrap_err();
    assert!(error.contains("/nonexistent"), "{error}");
    assert!(reload(&door, json!({"pools": []})).await.is_err());
    assert_eq!(door.post(&chat("x")).await.status, 200);
    assert_eq!(one.seen().len(), 1);
    assert!(door.get("/v1/models").await.text().contains("\"m\""));
}

#[tokio::test]
async fn policies_of_a_pool_that_stays_come_and_go() {
    let own = Replica::start(Answers::Whole, &["m"]).await;
    let other = Replica::start(Answers::Whole, &["m"]).await;
    let pools = |policies: Value| {
        let mut first = pool("p", &[&own]);
        merge(&mut first, policies);
        json!({"pools": [first, pool("q", &[&other])]})
    };
    let door = Door::with(pools(json!({}))).await;
    assert_eq!(door.post(&chat("x")).await.status, 200);
    let mirror = json!({"pool": "q", "share": 1});
    let both = json!({"mirror": mirror, "hedge": {"percentile": 0.9}});
    reload(&door, pools(both)).await.unwrap();
    assert_eq!(door.post(&chat("x")).await.status, 200);
    until("it is mirrored", || other.seen().len() == 1).await;
    let page = door.get("/metrics").await.text();
    assert!(page.contains("gateway_hedges_total{"), "{page}");
    reload(&door, pools(json!({}))).await.unwrap();
    assert_eq!(door.post(&chat("x")).await.status, 200);
    assert_eq!((own.seen().len(), other.seen().len()), (3, 1));
    assert!(
        !door
            .get("/metrics")
            .await
            .text()
            .contains("gateway_hedges_total{")
    );
}
