//! Tiers behind the pool in usage and on the page of metrics.

use penstock_engine_client::testing::{Action, Script};
use penstock_wire::{Add, Finish, Output, TierKinds, TierTokens};
use serde_json::{Value, json};

use crate::door::{Door, send};

/// Half of the hits come from the pool.
fn hits(_: &Add) -> Vec<Action> {
    let first = Output {
        tokens: vec![97],
        cached_tokens: 16,
        tier_tokens: TierTokens {
            ram: 3,
            disk: 0,
            remote: 5,
        },
        ..Output::default()
    };
    vec![Action::Send(first), send(&[98], Finish::Length)]
}

async fn door(kv_tiers: TierKinds) -> Door {
    let mut script = Script::new(hits);
    script.ready.kv_tiers = kv_tiers;
    Door::open_with(json!({}), script).await
}

const RAM_AND_REMOTE: TierKinds = TierKinds {
    ram: true,
    disk: false,
    remote: true,
};

fn details(reply: &Value) -> &Value {
    &reply["usage"]["prompt_tokens_details"]
}

#[tokio::test]
async fn usage_says_which_tier_a_hit_came_from() {
    let door = door(RAM_AND_REMOTE).await;
    let expected =
        json!({"cached_tokens": 16, "cached_tokens_by_tier": {"pool": 8, "ram": 3, "remote": 5}});
    let chat = json!({"messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(details(&door.chat(&chat).await.json()), &expected);
    let text = json!({"prompt": "twenty characters :-)"});
    assert_eq!(details(&door.complete(&text).await.json()), &expected);
    let choices = json!({"prompt": "twenty characters :-)", "n": 2});
    assert_eq!(details(&door.complete(&choices).await.json()), &expected);
    let both = json!({"prompt": ["twenty characters :-)", "another, as long, as."]});
    assert_eq!(
        details(&door.complete(&both).await.json())["cached_tokens_by_tier"],
        json!({"pool": 16, "ram": 6, "remote": 10})
    );
    for (path, mut body) in [("/v1/chat/completions", chat), ("/v1/completions", text)] {
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let events = door.post(path, &body).await.events();
        for event in &events {
            assert_eq!(details(event), &expected, "{path}");
        }
        assert_eq!(events.last().unwrap()["choices"], json!([]));
    }
}

#[tokio::test]
async fn without_tiers_usage_names_them_only_when_asked() {
    let script = Script::new(|_| {
        let first = Output {
            tokens: vec![97],
            cached_tokens: 16,
            finish: Finish::Length,
            ..Output::default()
        };
        vec![Action::Send(first)]
    });
    let door = Door::open_with(json!({}), script).await;
    let mut body = json!({"prompt": "twenty characters :-)"});
    let reply = door.complete(&body).await.json();
    assert_eq!(details(&reply), &json!({"cached_tokens": 16}));
    body["return_cached_tokens_by_tier"] = json!(true);
    assert_eq!(
        details(&door.complete(&body).await.json()),
        &json!({"cached_tokens": 16, "cached_tokens_by_tier": {"pool": 16}})
    );
    body["return_cached_tokens_by_tier"] = json!("yes");
    let (status, error) = door.complete(&body).await.error();
    assert_eq!(
        (status, &error["param"]),
        (400, &json!("return_cached_tokens_by_tier"))
    );
}

fn report() -> Value {
    let mut buckets = [0; 17];
    buckets[3] = 2;
    buckets[16] = 1;
    let loads = json!({"count": 3, "seconds": 0.75, "buckets": buckets});
    let none = json!({"count": 0, "seconds": 0.0, "buckets": vec![0; 17]});
    let tier = |name: &str, kind: &str, state: &str, loads: &Value| {
        json!({
            "name": name, "kind": kind, "state": state, "used_bytes": 0, "capacity_bytes": null,
            "hits": 0, "misses": 0, "hit_tokens": 0, "loaded_bytes": 0, "stored_bytes": 0,
            "errors": 0, "evicted_chunks": 0, "quarantined_chunks": 0, "dropped_stores": 0,
            "loads": loads, "stores": none,
        })
    };
    let mut ram = tier("ram", "ram", "serving", &loads);
    let mut disk = tier("disk:/v\"ar", "disk", "skipped", &loads);
    let mut redis = tier("redis://h", "remote", "serving", &none);
    for (member, value) in [
        ("used_bytes", 1000),
        ("capacity_bytes", 4096),
        ("hits", 7),
        ("misses", 2),
        ("hit_tokens", 96),
    ] {
        ram[member] = json!(value);
    }
    for (member, value) in [
        ("used_bytes", 5000),
        ("hit_tokens", 32),
        ("loaded_bytes", 11),
        ("stored_bytes", 12),
        ("errors", 13),
        ("evicted_chunks", 14),
        ("quarantined_chunks", 15),
        ("dropped_stores", 16),
    ] {
        disk[member] = json!(value);
    }
    for (member, value) in [("loaded_bytes", 21), ("stored_bytes", 22)] {
        redis[member] = json!(value);
    }
    json!({
        "lookup_tokens": 256,
        "decisions": {"load": 3, "compute": 2, "both": 1},
        "pinned_blocks": 9,
        "tiers": [ram, disk, redis],
    })
}

/// The page of `door` once a report has come in.
async fn page(door: &Door) -> String {
    loop {
        let page = door.get("/metrics").await.text().to_owned();
        if page.contains("penstock:kv_tier_hits_total") {
            return page;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_page_has_what_every_tier_did() {
    let mut script = Script::new(hits);
    script.ready.kv_tiers = RAM_AND_REMOTE;
    script.tiers = Some(report().to_string());
    let door = Door::open_with(json!({}), script).await;
    let prompt = json!({"prompt": "twenty characters :-)"});
    assert_eq!(door.complete(&prompt).await.status, 200);
    let page = page(&door).await;
    let disk = r#"tier="disk:/v\"ar""#;
    for (name, more, value) in [
        ("penstock:kv_tier_hits_total", r#"tier="ram""#, "7"),
        ("penstock:kv_tier_misses_total", r#"tier="ram""#, "2"),
        ("penstock:kv_tier_hit_tokens_total", disk, "32"),
        ("penstock:kv_tier_loaded_bytes_total", disk, "11"),
        ("penstock:kv_tier_stored_bytes_total", disk, "12"),
        ("penstock:kv_tier_errors_total", disk, "13"),
        ("penstock:kv_tier_evicted_chunks_total", disk, "14"),
        ("penstock:kv_tier_quarantined_chunks_total", disk, "15"),
        ("penstock:kv_tier_dropped_stores_total", disk, "16"),
        ("penstock:kv_tier_used_bytes", disk, "5000"),
        ("penstock:kv_tier_capacity_bytes", r#"tier="ram""#, "4096"),
        ("penstock:kv_tier_skipped", r#"tier="ram""#, "0"),
        ("penstock:kv_tier_skipped", disk, "1"),
        (
            "penstock:kv_tier_load_seconds_bucket",
            r#"tier="ram",le="0.0005""#,
            "0",
        ),
        (
            "penstock:kv_tier_load_seconds_bucket",
            r#"tier="ram",le="0.001""#,
            "2",
        ),
        (
            "penstock:kv_tier_load_seconds_bucket",
            r#"tier="ram",le="+Inf""#,
            "3",
        ),
        ("penstock:kv_tier_load_seconds_sum", r#"tier="ram""#, "0.75"),
        ("penstock:kv_tier_store_seconds_count", disk, "0"),
        (
            "penstock:kv_tier_decisions_total",
            r#"decision="load""#,
            "3",
        ),
        (
            "penstock:kv_tier_decisions_total",
            r#"decision="both""#,
            "1",
        ),
        (
            "vllm:prompt_tokens_by_source_total",
            r#"source="local_compute""#,
            "5",
        ),
        (
            "vllm:prompt_tokens_by_source_total",
            r#"source="local_cache_hit""#,
            "8",
        ),
        (
            "vllm:prompt_tokens_by_source_total",
            r#"source="external_kv_transfer""#,
            "8",
        ),
        (
            "vllm:prompt_tokens_cached_by_source_total",
            r#"source="device""#,
            "8",
        ),
        (
            "vllm:prompt_tokens_cached_by_source_total",
            r#"source="host""#,
            "3",
        ),
        (
            "vllm:prompt_tokens_cached_by_source_total",
            r#"source="external_unspecified""#,
            "5",
        ),
    ] {
        let line = format!(r#"{name}{{model_name="tiny",engine="0",{more}}} {value}"#);
        assert!(
            page.lines().any(|l| l == line),
            "{line} is missing in\n{page}"
        );
    }
    for (name, value) in [
        ("penstock:kv_pinned_blocks", "9"),
        ("vllm:external_prefix_cache_queries_total", "256"),
        ("vllm:external_prefix_cache_hits_total", "128"),
        ("lmcache:num_requested_tokens_total", "256"),
        ("lmcache:num_hit_tokens_total", "128"),
        ("lmcache:local_cache_usage", "1000"),
        ("lmcache:local_storage_usage", "5000"),
        ("lmcache:remote_cache_usage", "0"),
        ("lmcache:num_remote_read_bytes_total", "21"),
        ("lmcache:num_remote_write_bytes_total", "22"),
        ("lmcache:time_to_retrieve_count", "6"),
        ("lmcache:time_to_retrieve_sum", "1.5"),
    ] {
        let line = format!(r#"{name}{{model_name="tiny",engine="0"}} {value}"#);
        assert!(
            page.lines().any(|l| l == line),
            "{line} is missing in\n{page}"
        );
    }
    let typed: Vec<_> = page.lines().filter(|l| l.starts_with("# TYPE ")).collect();
    let distinct: std::collections::HashSet<_> = typed.iter().collect();
    assert_eq!(typed.len(), distinct.len(), "a name twice");
}

#[tokio::test]
async fn without_tiers_the_page_has_the_names_that_vllm_always_has_and_no_more() {
    let door = Door::saying("x").await;
    let page = door.get("/metrics").await.text().to_owned();
    for name in ["queries", "hits"] {
        let line =
            format!(r#"vllm:external_prefix_cache_{name}_total{{model_name="tiny",engine="0"}} 0"#);
        assert!(page.lines().any(|l| l == line), "{line}");
    }
    assert!(
        !page.contains("kv_tier_") && !page.contains("lmcache:"),
        "{page}"
    );
}
