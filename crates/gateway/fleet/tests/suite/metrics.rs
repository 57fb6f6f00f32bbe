//! What replicas report, joined with what this gateway sent.

use crate::common;
use std::time::Duration;

use crate::common::{Answer, fakes, fleet, page, quick, until};
use penstock_fleet::Outcome;

fn set(fakes: &[common::Fake], place: usize, body: impl Into<Vec<u8>>) {
    let body = body.into();
    fakes[place].set(|answers| answers.metrics = Answer::Page(body));
}

#[tokio::test]
async fn load_is_that_of_others_and_own_requests() {
    let fakes = fakes(2).await;
    set(&fakes, 0, page(2, 5));
    let fleet = fleet(&fakes, quick()).await;
    until(&fleet, |all| (all[0].waiting, all[0].running) == (2.0, 5.0)).await;
    until(&fleet, |all| all[1].kv_use == 0.5).await;
    let view = fleet.view();
    assert_eq!(view.replicas[0].kv_use, 0.5);
    assert!(view.replicas[0].backlog_tokens > 0.0);
    assert_eq!(view.kv_tokens(0), Some(16_000.0));
    assert_eq!(view.models(0).unwrap()[0].as_ref(), "tiny");
    let id = view.replicas[1].id;
    let mut own: Vec<_> = (0..3).map(|_| fleet.begin(id, 160.0, 1600.0)).collect();
    let one = &fleet.view().replicas[1];
    assert_eq!(
        (one.waiting, one.running, one.backlog_tokens),
        (3.0, 0.0, 480.0)
    );
    assert!((one.kv_use - 0.8).abs() < 1e-5, "{}", one.kv_use);
    // the replica reports them too: they are not somebody else's
    set(&fakes, 1, page(1, 2));
    until(&fleet, |all| (all[1].waiting, all[1].running) == (1.0, 2.0)).await;
    own.drain(..).for_each(|one| one.end(Outcome::Served));
    let one = &fleet.view().replicas[1];
    assert_eq!(one.waiting + one.running, 0.0);
}

#[tokio::test]
async fn garbage_and_silence_leave_own_requests() {
    let fakes = fakes(4).await;
    (0..4).for_each(|place| set(&fakes, place, page(0, 7)));
    let fleet = fleet(&fakes, quick()).await;
    until(&fleet, |all| all.iter().all(|one| one.running == 7.0)).await;
    set(
        &fakes,
        0,
        b"\xff\xfe{{{\nvllm:num_requests_running{ NaN\n".as_slice(),
    );
    fakes[1].set(|answers| answers.metrics = Answer::Hang);
    fakes[2].set(|answers| answers.metrics = Answer::Status(500));
    let own = fleet.begin(fleet.view().replicas[1].id, 10.0, 10.0);
    until(&fleet, |all| all[..3].iter().all(|one| one.running == 0.0)).await;
    assert_eq!(fleet.view().replicas[1].waiting, 1.0);
    drop(own);
    // one that hangs delays no other
    set(&fakes, 3, page(0, 9));
    let began = std::time::Instant::now();
    until(&fleet, |all| all[3].running == 9.0).await;
    assert!(began.elapsed() < Duration::from_secs(10));
    set(&fakes, 0, page(0, 3));
    until(&fleet, |all| all[0].running == 3.0).await;
}

#[tokio::test]
async fn a_page_without_end_is_given_up() {
    let fakes = fakes(2).await;
    set(&fakes, 0, vec![b'#'; 9 << 20]);
    set(&fakes, 1, page(0, 4));
    let fleet = fleet(&fakes, quick()).await;
    until(&fleet, |all| all[1].running == 4.0).await;
    assert_eq!(fleet.view().replicas[0].running, 0.0);
}

#[tokio::test]
async fn the_pace_is_learned_from_answers() {
    let fakes = fakes(2).await;
    let fleet = fleet(&fakes, quick()).await;
    let id = fleet.view().replicas[0].id;
    let usual = fleet.view().replicas[0].pace;
    for _ in 0..8 {
        let mut one = fleet.begin(id, 1e6, 1e6);
        one.first_token();
        one.tokens(1000);
        one.end(Outcome::Served);
    }
    // the other one is of the same class
    until(&fleet, |all| {
        let faster = |one: &penstock_routing::Replica| {
            one.pace.prefill_tokens_per_s > 100.0 * usual.prefill_tokens_per_s
                && one.pace.decode_s < usual.decode_s
        };
        all.iter().all(faster)
    })
    .await;
}
