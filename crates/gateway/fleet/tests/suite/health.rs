//! Which replicas get requests: health checks, failures, and lists that change.

use std::time::Duration;

use crate::common::{Answer, Fake, client, fakes, fleet, page, quick, ready, until};
use penstock_fleet::{Fleet, Outcome, Settings, Source};
use penstock_routing::Condition;

#[tokio::test]
async fn health_checks_decide_who_gets_requests() {
    let fakes = fakes(3).await;
    let fleet = fleet(&fakes, quick()).await;
    assert!(fleet.view().replicas.iter().all(ready));
    fakes[1].set(|answers| answers.health = Answer::Status(500));
    until(&fleet, |all| all[1].condition == Condition::Unhealthy).await;
    assert!(ready(&fleet.view().replicas[0]));
    fakes[1].set(|answers| answers.health = Answer::Status(200));
    until(&fleet, |all| ready(&all[1])).await;
    fakes[1].set(|answers| answers.health = Answer::Hang);
    until(&fleet, |all| all[1].condition == Condition::Unhealthy).await;
    assert!(ready(&fleet.view().replicas[2]));
}

#[tokio::test]
async fn a_server_that_is_alive_and_not_ready_drains() {
    let fakes = fakes(1).await;
    let fleet = fleet(&fakes, quick()).await;
    fakes[0].set(|answers| answers.ready = Answer::Status(503));
    until(&fleet, |all| all[0].condition == Condition::Draining).await;
    fakes[0].set(|answers| answers.health = Answer::Status(503));
    until(&fleet, |all| all[0].condition == Condition::Unhealthy).await;
    fakes[0].set(|answers| {
        answers.ready = Answer::Status(200);
        answers.health = Answer::Status(404);
    });
    until(&fleet, |all| ready(&all[0])).await;
}

#[tokio::test]
async fn a_server_without_health_paths_is_healthy_when_it_answers() {
    let fakes = fakes(1).await;
    fakes[0].set(|answers| {
        answers.health = Answer::Status(404);
        answers.models = Answer::Status(401);
        answers.metrics = Answer::Status(404);
    });
    let fleet = fleet(&fakes, quick()).await;
    let view = fleet.view();
    assert!(ready(&view.replicas[0]));
    assert_eq!(view.models(0), None);
}

#[tokio::test]
async fn a_dead_server_is_found_and_comes_back_slowly() {
    let mut fakes = fakes(2).await;
    let settings = Settings {
        slow_start_s: 1000.0,
        ..quick()
    };
    let fleet = fleet(&fakes, settings).await;
    assert!(fleet.view().replicas.iter().all(ready));
    let url = fakes.pop().unwrap().url.clone();
    until(&fleet, |all| all[1].condition == Condition::Unhealthy).await;
    let again = Fake::start_at(&url).await;
    again.set(|answers| answers.models = Answer::Page(br#"{"data": [{"id": "new"}]}"#.to_vec()));
    until(
        &fleet,
        |all| matches!(all[1].condition, Condition::Warming(share) if share < 0.2),
    )
    .await;
    until(&fleet, |_| {
        fleet
            .view()
            .models(1)
            .is_some_and(|names| *names[0] == *"new")
    })
    .await;
}

#[tokio::test]
async fn a_process_that_ends_or_is_another_one_counts_as_a_restart() {
    let mut fakes = fakes(2).await;
    let fleet = fleet(&fakes, quick()).await;
    let restarts = |place: usize| fleet.view().restarts(place);
    let report = |fake: &Fake, start: u32, work: u32| {
        let head = format!("process_start_time_seconds {start}\n");
        let work = format!("vllm:prefix_cache_queries_total {work}\n");
        let body = [head, work, page(start, 0)].concat().into_bytes();
        fake.set(|answers| answers.metrics = Answer::Page(body));
    };
    report(&fakes[0], 100, 50);
    until(&fleet, |all| all[0].waiting == 100.0).await;
    assert_eq!(restarts(0), 0);
    report(&fakes[0], 100, 20);
    until(&fleet, |_| restarts(0) == 1).await;
    report(&fakes[0], 200, 20);
    until(&fleet, |_| restarts(0) == 2).await;
    let url = fakes.pop().unwrap().url.clone();
    until(&fleet, |_| restarts(1) == 1).await;
    let _again = Fake::start_at(&url).await;
    until(&fleet, |all| ready(&all[1])).await;
    assert_eq!((restarts(0), restarts(1)), (2, 1));
}

#[tokio::test]
async fn failed_requests_open_the_circuit_breaker_and_a_trial_closes_it() {
    let fakes = fakes(2).await;
    let mut settings = quick();
    settings.breaker.open_s = 0.05;
    let fleet = fleet(&fakes, settings).await;
    let id = fleet.view().replicas[0].id;
    for _ in 0..5 {
        fleet.begin(id, 10.0, 10.0).end(Outcome::Failed);
    }
    assert_eq!(fleet.view().replicas[0].condition, Condition::Ejected);
    until(&fleet, |all| ready(&all[0])).await;
    // half-open: the trial takes the place
    let trial = fleet.begin(id, 10.0, 10.0);
    assert_eq!(fleet.view().replicas[0].condition, Condition::Ejected);
    trial.end(Outcome::Failed);
    assert_eq!(fleet.view().replicas[0].condition, Condition::Ejected);
    until(&fleet, |all| ready(&all[0])).await;
    let mut trial = fleet.begin(id, 10.0, 10.0);
    trial.first_token();
    assert!(ready(&fleet.view().replicas[0]));
    drop(trial);
    assert!(ready(&fleet.view().replicas[0]));
}

/// Whose fault it was is found out later: until then it takes neither a place nor the trial.
#[tokio::test]
async fn an_unclear_end_frees_the_trial_and_may_still_be_a_failure() {
    let fakes = fakes(2).await;
    let mut settings = quick();
    settings.breaker.open_s = 0.05;
    let fleet = fleet(&fakes, settings).await;
    let id = fleet.view().replicas[0].id;
    for _ in 0..5 {
        fleet.begin(id, 10.0, 10.0).end(Outcome::Failed);
    }
    until(&fleet, |all| ready(&all[0])).await;
    let trial = fleet.begin(id, 10.0, 10.0);
    assert_eq!(fleet.view().replicas[0].condition, Condition::Ejected);
    let blame = trial.end_unclear();
    let replica = fleet.view().replicas[0].clone();
    assert!(ready(&replica) && replica.waiting + replica.running == 0.0);
    blame.failed();
    assert_eq!(fleet.view().replicas[0].condition, Condition::Ejected);
}

#[tokio::test]
async fn a_replica_that_fails_far_more_often_is_ejected() {
    let fakes = fakes(3).await;
    let mut settings = quick();
    settings.outliers.period_s = 0.1;
    settings.breaker.failures = 1000;
    let fleet = fleet(&fakes, settings).await;
    for replica in &fleet.view().replicas {
        let bad = replica.id == fleet.view().replicas[2].id;
        for n in 0..100 {
            let outcome = if bad && n % 2 == 0 {
                Outcome::Failed
            } else {
                Outcome::Served
            };
            fleet.begin(replica.id, 1.0, 1.0).end(outcome);
        }
    }
    until(&fleet, |all| all[2].condition == Condition::Ejected).await;
    assert!(fleet.view().replicas[..2].iter().all(ready));
}

#[tokio::test]
async fn a_list_that_changes_drains_what_it_lost() {
    let fakes = fakes(3).await;
    let path = std::env::temp_dir().join(format!("penstock-fleet-{}", std::process::id()));
    std::fs::write(&path, format!("{}\n{}\n", fakes[0].url, fakes[1].url)).unwrap();
    let fleet = Fleet::start(Source::File(path.clone()), quick(), client()).unwrap();
    assert!(fleet.ready(Duration::from_secs(300)).await);
    let view = fleet.view();
    let (first, second) = (view.replicas[0].id, view.replicas[1].id);
    let stays = fleet.begin(second, 100.0, 100.0);
    std::fs::write(&path, format!("{}\n\n{}\n", fakes[0].url, fakes[2].url)).unwrap();
    until(&fleet, |all| all.len() == 3 && ready(&all[2])).await;
    let view = fleet.view();
    assert_eq!(view.replicas[1].condition, Condition::Draining);
    assert_eq!(view.replicas[1].waiting + view.replicas[1].running, 1.0);
    assert_eq!(**view.url(2), *fakes[2].url);
    stays.end(Outcome::Served);
    until(&fleet, |all| all.len() == 2).await;
    std::fs::write(
        &path,
        format!("{}\n{}  # again\n", fakes[0].url, fakes[1].url),
    )
    .unwrap();
    until(&fleet, |all| all.len() == 2 && ready(&all[1])).await;
    let view = fleet.view();
    assert_eq!(view.replicas[0].id, first);
    assert!(view.replicas[1].id > second, "an id was used again");
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_name_is_looked_up() {
    let fakes = fakes(1).await;
    let port = fakes[0].url.rsplit(':').next().unwrap().parse().unwrap();
    let name = "localhost".to_owned();
    let fleet = Fleet::start(Source::Dns { name, port }, quick(), client()).unwrap();
    assert!(fleet.ready(Duration::from_secs(300)).await);
    // ::1 may be another of its addresses
    until(&fleet, |all| all.iter().any(ready)).await;
}

#[tokio::test]
async fn a_name_without_addresses_is_an_empty_fleet() {
    let name = "no-such-host.invalid".to_owned();
    let fleet = Fleet::start(Source::Dns { name, port: 80 }, quick(), client()).unwrap();
    assert!(!fleet.ready(Duration::from_millis(50)).await);
    assert!(fleet.view().replicas.is_empty());
}

#[tokio::test]
async fn tasks_end_with_the_last_handle() {
    let fakes = fakes(2).await;
    let before = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    let fleet = fleet(&fakes, quick()).await;
    let other = fleet.clone();
    drop(fleet);
    until(&other, |all| all.iter().all(ready)).await;
    drop((other, fakes));
    let began = std::time::Instant::now();
    let alive = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    while alive() > before {
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "{} tasks",
            alive()
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
