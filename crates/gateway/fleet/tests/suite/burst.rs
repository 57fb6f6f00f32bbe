//! Decisions between two polls: reservations alone spread them.

use crate::common::{Answer, Fake, fakes, fleet, page, quick, until};
use penstock_fleet::{Fleet, InFlight, Outcome};
use penstock_routing::{Profile, Replica, ReplicaId, Request, pick};

const REPLICAS: usize = 10;
const REQUESTS: u64 = 500;

/// A fleet of busy servers that are not polled any more.
async fn polled(fakes: &[Fake]) -> Fleet {
    let mut settings = quick();
    settings.metrics.timeout_s = 1000.0;
    settings.metrics.stale_s = 1000.0;
    fakes
        .iter()
        .for_each(|fake| fake.set(|answers| answers.metrics = Answer::Page(page(0, 3).into())));
    let fleet = fleet(fakes, settings).await;
    until(&fleet, |all| all.iter().all(|one| one.running == 3.0)).await;
    fakes
        .iter()
        .for_each(|fake| fake.set(|answers| answers.metrics = Answer::Hang));
    fleet
}

fn send(fleet: &Fleet, profile: &Profile, ticket: u64, prompt_tokens: f32) -> InFlight {
    let request = Request {
        prompt_tokens,
        ticket,
        ..Request::default()
    };
    let view = fleet.view();
    let decision = pick(profile, &request, &view.replicas).unwrap();
    fleet.begin(decision.first().replica, prompt_tokens, prompt_tokens)
}

/// Requests and tokens of each replica after a burst.
async fn burst(fleet: &Fleet, profile: &str, tokens: impl Fn(u64) -> f32) -> Vec<(f32, f32)> {
    let profile = Profile::new(serde_json::from_str(profile).unwrap()).unwrap();
    let send = |n| send(fleet, &profile, n, tokens(n));
    let sent: Vec<InFlight> = (0..REQUESTS).map(send).collect();
    let load = |one: &Replica| (one.running + one.waiting, one.backlog_tokens);
    let loads = fleet.view().replicas.iter().map(load).collect();
    drop(sent);
    let idle = |one: &Replica| load(one) == (3.0, 0.0);
    assert!(fleet.view().replicas.iter().all(idle));
    loads
}

/// Within 20%.
fn even(values: impl Iterator<Item = f32> + Clone) -> bool {
    let mean = values.clone().sum::<f32>() / REPLICAS as f32;
    let near = |value: f32| (0.8 * mean..=1.2 * mean).contains(&value);
    values.clone().count() == REPLICAS && values.clone().all(near)
}

#[tokio::test]
async fn a_burst_between_two_polls_spreads_evenly() {
    let fakes = fakes(REPLICAS).await;
    let fleet = polled(&fakes).await;
    let same = |_| 300.0;
    // 100 to 1000 tokens
    let mixed = |n: u64| (100 + (n * 617) % 900) as f32;
    for profile in ["{}", r#"{"scorers": [{"name": "running"}]}"#] {
        let loads = burst(&fleet, profile, same).await;
        assert!(
            even(loads.iter().map(|(requests, _)| *requests)),
            "{loads:?}"
        );
    }
    // one counts work, the other requests
    let loads = burst(&fleet, "{}", mixed).await;
    assert!(even(loads.iter().map(|(_, tokens)| *tokens)), "{loads:?}");
    let loads = burst(&fleet, r#"{"scorers": [{"name": "running"}]}"#, mixed).await;
    assert!(
        even(loads.iter().map(|(requests, _)| *requests)),
        "{loads:?}"
    );
}

#[tokio::test]
async fn a_request_counts_until_it_ends_however_it_ends() {
    let fakes = fakes(4).await;
    let fleet = polled(&fakes).await;
    let id = fleet.view().replicas[3].id;
    let state = || {
        let one = &fleet.view().replicas[3];
        (one.waiting, one.running, one.backlog_tokens)
    };
    let mut first = fleet.begin(id, 300.0, 400.0);
    assert_eq!(state(), (1.0, 3.0, 300.0));
    first.first_token();
    first.first_token();
    assert_eq!(state(), (0.0, 4.0, 0.0));
    let second = fleet.begin(id, 50.0, 400.0);
    assert_eq!(state(), (1.0, 4.0, 50.0));
    first.end(Outcome::Served);
    drop(second);
    assert_eq!(state(), (0.0, 3.0, 0.0));
    fleet.begin(ReplicaId(99), 50.0, 50.0).end(Outcome::Failed);
}
