#![allow(clippy::unwrap_used)]
//! Decisions between two polls: reservations alone spread them.

use std::collections::HashMap;
use std::time::Duration;

use penstock_fleet::{Fleet, InFlight, Outcome, Settings};
use penstock_http::Client;
use penstock_routing::{Profile, ReplicaId, Request, pick};

const REPLICAS: usize = 10;
const REQUESTS: u64 = 500;

fn fleet() -> Fleet {
    let urls: Vec<String> = (1..=REPLICAS)
        .map(|n| format!("http://127.0.0.1:{n}"))
        .collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let client = Client::new(Duration::from_secs(1)).unwrap();
    Fleet::of(&urls, Settings::default(), client).unwrap()
}

fn send(fleet: &Fleet, profile: &Profile, ticket: u64) -> (ReplicaId, InFlight) {
    // Prompts of 100 to 1000 tokens.
    let prompt_tokens = (100 + (ticket * 617) % 900) as f32;
    let request = Request {
        prompt_tokens,
        ticket,
        ..Request::default()
    };
    let view = fleet.view();
    let id = pick(profile, &request, &view.replicas)
        .unwrap()
        .first()
        .replica;
    (id, fleet.begin(id, prompt_tokens, prompt_tokens))
}

#[tokio::test]
async fn a_burst_between_two_polls_spreads_evenly() {
    for profile in ["{}", r#"{"scorers": [{"name": "running"}]}"#] {
        let profile = Profile::new(serde_json::from_str(profile).unwrap()).unwrap();
        let fleet = fleet();
        let sent: Vec<_> = (0..REQUESTS).map(|n| send(&fleet, &profile, n)).collect();
        let mut counts: HashMap<ReplicaId, usize> = HashMap::new();
        for (id, _) in &sent {
            *counts.entry(*id).or_default() += 1;
        }
        let even = REQUESTS as usize / REPLICAS;
        let near = |count: &usize| (even * 8 / 10..=even * 12 / 10).contains(count);
        assert_eq!(counts.len(), REPLICAS);
        assert!(counts.values().all(near), "{counts:?}");
        drop(sent);
        assert!(
            fleet
                .view()
                .replicas
                .iter()
                .all(|one| one.running + one.waiting == 0.0)
        );
    }
}

#[tokio::test]
async fn a_request_counts_until_it_ends_however_it_ends() {
    let fleet = fleet();
    let id = fleet.view().replicas[3].id;
    let state = || {
        let one = &fleet.view().replicas[3];
        (one.waiting, one.running, one.backlog_tokens)
    };
    let mut first = fleet.begin(id, 300.0, 400.0);
    assert_eq!(state(), (1.0, 0.0, 300.0));
    first.first_token();
    first.first_token();
    assert_eq!(state(), (0.0, 1.0, 0.0));
    let second = fleet.begin(id, 50.0, 400.0);
    assert_eq!(state(), (1.0, 1.0, 50.0));
    first.end(Outcome::Served);
    drop(second);
    assert_eq!(state(), (0.0, 0.0, 0.0));
    fleet.begin(ReplicaId(99), 50.0, 50.0).end(Outcome::Failed);
}
