//! Exact prefixes: replicas say what they hold, and the gateway believes them more than itself.

use std::path::PathBuf;

use penstock_kv_events::{BatchWriter, Endpoint, Medium, Publisher, PublisherSettings};
use serde_json::{Value, json};

use crate::replica::{Answers, Replica};
use crate::{Door, chat, until_shown};

/// Tokens of a block.
const SIZE: usize = 4;

/// A model whose words `w0` to `w99` are the tokens 0 to 99, and whose template writes the texts of
/// messages alone. It goes with the value.
struct Model(PathBuf);

impl Model {
    fn write(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("penstock-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let words: serde_json::Map<String, Value> =
            (0..100).map(|id| (format!("w{id}"), id.into())).collect();
        let tokenizer = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null,
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "w99"},
        });
        let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let config = json!({"chat_template": template});
        std::fs::write(path.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        std::fs::write(path.join("tokenizer_config.json"), config.to_string()).unwrap();
        Self(path)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A replica that publishes.
struct Speaking {
    replica: Replica,
    publisher: Publisher,
}

impl Speaking {
    async fn start() -> Self {
        let endpoint = || Endpoint::parse("tcp://*:0").unwrap();
        let settings = PublisherSettings {
            events: endpoint(),
            replay: Some(endpoint()),
            topic: "kv-events".to_owned(),
            buffer_steps: 100,
            hwm: 100,
        };
        let publisher = Publisher::start(settings).unwrap();
        let speaking = Self {
            replica: Replica::start(Answers::Whole, &["m"]).await,
            publisher,
        };
        speaking.say(BatchWriter::cleared);
        speaking
    }

    fn say(&self, write: impl FnOnce(&mut BatchWriter)) {
        let mut writer = BatchWriter::default();
        write(&mut writer);
        self.publisher.publish(writer.finish(1.0).unwrap());
    }

    /// Blocks of a prompt, under the names 1, 2, ...
    fn holds(&self, tokens: &[u32]) {
        self.say(|writer| {
            for (at, block) in (1u64..).zip(tokens.chunks_exact(SIZE)) {
                writer.stored(at, (at > 1).then(|| at - 1), block, None);
            }
        });
    }

    fn backend(&self) -> Value {
        let (events, replay) = self.publisher.ports();
        let labels = json!({"events": events.to_string(), "replay": replay.unwrap().to_string()});
        json!({"url": self.replica.url, "labels": labels})
    }
}

async fn door(all: &[Speaking], model: &Model, scorers: Value) -> Door {
    let backends: Vec<Value> = all.iter().map(Speaking::backend).collect();
    let pool = json!({
        "name": "p", "source": {"static": backends}, "profile": {"scorers": scorers},
        "fleet": {"slow_start_s": 0}, "tokenizer": model.0,
        "kv_events": {"endpoint": "tcp://{host}:{events}",
                      "replay_endpoint": "tcp://{host}:{replay}", "topic": "kv"},
    });
    let door = Door::with(json!({"pools": [pool], "explain": true})).await;
    until_shown("events", async || {
        count(&door, "kv_events_complete{").await == all.len() as u64
    })
    .await;
    door
}

/// The sum of the samples that begin so, after `penstock:gateway_`.
async fn count(door: &Door, name: &str) -> u64 {
    let page = door.get("/metrics").await.text();
    let name = format!("penstock:gateway_{name}");
    let samples = page.lines().filter(|line| line.starts_with(&name));
    samples
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

async fn blocks(door: &Door, wanted: u64) {
    until_shown("blocks", async || {
        count(door, "kv_events_blocks").await == wanted
    })
    .await;
}

fn text(tokens: &[u32]) -> String {
    let words: Vec<String> = tokens.iter().map(|token| format!("w{token}")).collect();
    words.join(" ")
}

#[tokio::test]
async fn a_prompt_goes_where_its_blocks_are_and_not_where_they_were() {
    let model = Model::write("exact");
    let all = [Speaking::start().await, Speaking::start().await];
    let door = door(&all, &model, json!([{"name": "prefix"}])).await;
    let tokens: Vec<u32> = (0..80).collect();
    let prompt = chat(&text(&tokens));
    all[1].holds(&tokens);
    blocks(&door, 20).await;
    for _ in 0..3 {
        assert_eq!(door.post(&prompt).await.status, 200);
    }
    assert_eq!(all[1].replica.seen().len(), 3);
    // the same by token ids, and by text
    for same in [json!(tokens), json!(text(&tokens))] {
        let body = json!({"model": "m", "prompt": same}).to_string();
        assert_eq!(door.send("/v1/completions", &[], body).await.status, 200);
    }
    assert_eq!(all[1].replica.seen().len(), 5);
    assert_eq!(count(&door, "prompts_tokenized_total").await, 5);
    // it is evicted there, and computed here meanwhile: the approximate index does not know
    all[1].say(|writer| (1..=20).for_each(|name| writer.removed(name, Medium::Pool)));
    blocks(&door, 0).await;
    all[0].holds(&tokens);
    blocks(&door, 20).await;
    for _ in 0..3 {
        assert_eq!(door.post(&prompt).await.status, 200);
    }
    assert_eq!(all[0].replica.seen().len(), 3);
}

#[tokio::test]
async fn a_burst_of_one_prompt_stays_together_before_its_first_block_is_stored() {
    let model = Model::write("burst");
    let all = [Speaking::start().await, Speaking::start().await];
    let door = door(&all, &model, json!([{"name": "prefix"}])).await;
    // both have told the size of their blocks
    all.iter().for_each(|one| one.holds(&[90, 91, 92, 93]));
    blocks(&door, 2).await;
    let prompt = chat(&text(&(0..80).collect::<Vec<u32>>()));
    for _ in 0..6 {
        assert_eq!(door.post(&prompt).await.status, 200);
    }
    let counts = all.each_ref().map(|one| one.replica.seen().len());
    assert!(counts.contains(&6), "{counts:?}");
}

#[tokio::test]
async fn a_replica_that_is_not_heard_any_more_is_judged_as_before() {
    let model = Model::write("silent");
    let mut all = vec![Speaking::start().await, Speaking::start().await];
    let door = door(&all, &model, json!([{"name": "prefix"}])).await;
    let tokens: Vec<u32> = (0..80).collect();
    all[1].holds(&tokens);
    blocks(&door, 20).await;
    let prompt = chat(&text(&tokens));
    assert_eq!(door.post(&prompt).await.status, 200);
    assert_eq!(all[1].replica.seen().len(), 1);
    let Speaking { replica, publisher } = all.pop().unwrap();
    drop(publisher);
    blocks(&door, 0).await;
    // the gateway's own notes say so too
    assert_eq!(door.post(&prompt).await.status, 200);
    assert_eq!(replica.seen().len(), 2);
    assert!(all[0].replica.seen().is_empty());
}

#[tokio::test]
async fn the_nearer_of_two_tiers_gets_the_prompt() {
    let model = Model::write("tiers");
    let all = [Speaking::start().await, Speaking::start().await];
    let door = door(&all, &model, json!([{"name": "prefix"}])).await;
    let worlds = [
        ([Medium::Disk, Medium::Ram], 1),
        ([Medium::Disk, Medium::Shared], 0),
        ([Medium::Pool, Medium::Ram], 0),
    ];
    for (first, (media, nearer)) in (1u64..).step_by(100).zip(worlds) {
        let tokens: Vec<u32> = (0..80).map(|at| (at + first as u32) % 97).collect();
        for (one, medium) in all.iter().zip(media) {
            one.say(|writer| {
                for (at, block) in (first..).zip(tokens.chunks_exact(SIZE)) {
                    writer.stored(at, (at > first).then(|| at - 1), block, None);
                }
            });
            if medium != Medium::Pool {
                one.say(|writer| (first..first + 20).for_each(|at| writer.copied(at, medium)));
                one.say(|writer| {
                    (first..first + 20).for_each(|at| writer.removed(at, Medium::Pool));
                });
            }
            // the last one, which shows that all were taken in
            one.say(|writer| writer.stored(first + 50, None, &[98, 98, 98, first as u32], None));
        }
        blocks(&door, 42 * (first / 100 + 1)).await;
        let before = all.each_ref().map(|one| one.replica.seen().len());
        for _ in 0..3 {
            assert_eq!(door.post(&chat(&text(&tokens))).await.status, 200);
        }
        let after = all.each_ref().map(|one| one.replica.seen().len());
        assert_eq!(after[nearer] - before[nearer], 3, "{media:?}");
    }
}

/// Blocks of a prompt in three tiers; those in shared storage count for the other replica too.
#[tokio::test]
async fn a_hit_says_its_tiers_in_the_header_and_in_the_explanation() {
    let model = Model::write("held");
    let all = [Speaking::start().await, Speaking::start().await];
    let door = door(&all, &model, json!([{"name": "prefix"}])).await;
    let tokens: Vec<u32> = (0..40).collect();
    all[0].holds(&tokens);
    for (names, medium) in [(3..9, Medium::Ram), (9..11, Medium::Shared)] {
        let (copied, moved) = (names.clone(), names);
        all[0].say(|writer| copied.for_each(|at| writer.copied(at, medium)));
        all[0].say(|writer| moved.for_each(|at| writer.removed(at, Medium::Pool)));
    }
    all[1].holds(&[&tokens[..36], &[90; 4]].concat());
    for medium in [Medium::Ram, Medium::Shared] {
        all[1].say(|writer| writer.copied(10, medium));
        // the block before is nowhere but in the shared tier of the other one
        all[1].say(|writer| writer.removed(9, Medium::Pool));
    }
    // the last ones, which show that all were taken in
    for one in &all {
        one.say(|writer| writer.stored(50, None, &[98; 4], None));
    }
    blocks(&door, 21).await;
    let body = chat(&text(&tokens)).to_string();
    let explained = door.send("/route/explain", &[], body.clone()).await.json();
    let held = |at: usize| {
        let address = all[at].replica.url.strip_prefix("http://").unwrap();
        let replicas = explained["replicas"].as_array().unwrap();
        let found = replicas.iter().find(|one| one["address"] == address);
        found.unwrap()["held_tokens"].clone()
    };
    assert_eq!(
        held(0),
        json!({"pool": 8, "ram": 24, "disk": 0, "shared": 8})
    );
    assert_eq!(
        held(1),
        json!({"pool": 32, "ram": 0, "disk": 0, "shared": 8})
    );
    let answer = door.send("/v1/chat/completions", &[], body).await;
    let decision = answer.headers["x-penstock-decision"].to_str().unwrap();
    assert!(
        decision.ends_with(" of 2; cached: pool 32 + shared 8"),
        "{decision}"
    );
}
