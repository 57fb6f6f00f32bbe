//! Load that replicas push at each step of their engine.

use std::time::{Duration, Instant};

use crate::common::{Answer, Fake, STREAM, fakes, fleet, page, quick, streamed_page, until};
use penstock_fleet::{Fleet, Outcome, Settings};
use tokio::sync::broadcast::Sender;

fn line(step: u64, waiting: u32, running: u32) -> String {
    format!(
        "{{\"step\":{step},\"waiting\":{waiting},\"running\":{running},\"kv_use\":0.75,\
         \"kv_tokens\":32000}}\n"
    )
}

fn set_page(fake: &Fake, body: impl Into<Vec<u8>>) {
    let body = body.into();
    fake.set(|answers| answers.metrics = Answer::Page(body));
}

/// After the first scrape there is none for a long time.
fn scraped_once() -> Settings {
    let mut settings = quick();
    settings.metrics.period_s = 600.0;
    settings.metrics.stale_s = 600.0;
    settings
}

/// A replica that offers a stream, and what it streams; its fleet, which follows it.
async fn following(settings: Settings) -> (Vec<Fake>, Sender<String>, Fleet) {
    let fakes = fakes(1).await;
    set_page(&fakes[0], streamed_page(0, 1));
    let feed = fakes[0].feed();
    let fleet = fleet(&fakes, settings).await;
    followed(&feed).await;
    (fakes, feed, fleet)
}

/// Sends lines until the load is theirs: a scrape that comes later is newer than a line.
async fn push(fleet: &Fleet, feed: &Sender<String>, steps: u64, running: u32) {
    let began = Instant::now();
    for step in steps.. {
        // without a reader there is the next attempt
        let _ = feed.send(line(step, 0, running));
        tokio::time::sleep(Duration::from_millis(2)).await;
        if fleet.view().replicas[0].running == running as f32 {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(300));
    }
}

async fn followed(feed: &Sender<String>) {
    let began = Instant::now();
    while feed.receiver_count() == 0 {
        assert!(began.elapsed() < Duration::from_secs(300));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn what_is_pushed_is_the_load_without_a_scrape() {
    let (fakes, feed, fleet) = following(scraped_once()).await;
    assert_eq!(fleet.view().replicas[0].running, 1.0);
    feed.send(line(1, 2, 5)).unwrap();
    until(&fleet, |all| (all[0].waiting, all[0].running) == (2.0, 5.0)).await;
    assert_eq!(fleet.view().replicas[0].kv_use, 0.75);
    // several at once: the last one counts
    feed.send([line(2, 9, 9), line(3, 0, 3)].concat()).unwrap();
    until(&fleet, |all| (all[0].waiting, all[0].running) == (0.0, 3.0)).await;
    assert_eq!((fakes[0].scrapes(), fakes[0].streams()), (1, 1));
}

#[tokio::test]
async fn scrapes_are_rarer_while_lines_come() {
    let mut settings = quick();
    settings.metrics.stale_s = 60.0;
    let (fakes, feed, fleet) = following(settings).await;
    push(&fleet, &feed, 1, 5).await;
    let (began, before) = (Instant::now(), fakes[0].scrapes());
    for step in 0..30 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        feed.send(line(1_000_000 + step, 0, 6)).unwrap();
    }
    let periods = began.elapsed().as_secs_f64() / 0.1;
    let scrapes = fakes[0].scrapes() - before;
    assert!(
        scrapes as f64 <= periods + 2.0,
        "{scrapes} in {periods} periods"
    );
    // what the page alone says is still read
    set_page(&fakes[0], streamed_page(0, 1).replace("1000\"", "2000\""));
    let began = Instant::now();
    while fleet.view().kv_tokens(0) != Some(32_000.0) {
        assert!(began.elapsed() < Duration::from_secs(300));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn own_requests_are_not_somebody_else_s() {
    let (_fakes, feed, fleet) = following(scraped_once()).await;
    let id = fleet.view().replicas[0].id;
    let load = || {
        let one = fleet.view().replicas[0].clone();
        (one.waiting, one.running)
    };
    let mut own: Vec<_> = (0..3).map(|_| fleet.begin(id, 100.0, 1600.0)).collect();
    feed.send(line(1, 1, 4)).unwrap();
    until(&fleet, |all| all[0].kv_use == 0.75).await;
    assert_eq!(load(), (1.0, 4.0));
    // sent after the line: not in it
    own.push(fleet.begin(id, 100.0, 3200.0));
    assert_eq!(load(), (2.0, 4.0));
    assert!((fleet.view().replicas[0].kv_use - 0.85).abs() < 1e-5);
    // the same line again says nothing of that request
    let age = || fleet.view().report_age(0).unwrap();
    let before = age();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(age() > before);
    let again = Instant::now();
    feed.send(line(1, 1, 4)).unwrap();
    until(&fleet, |_| age() < again.elapsed()).await;
    assert_eq!(load(), (2.0, 4.0));
    own.drain(..).for_each(|one| one.end(Outcome::Served));
    assert_eq!(load(), (0.0, 2.0));
}

#[tokio::test]
async fn a_stream_that_breaks_off_leaves_the_load_to_scrapes_and_comes_back() {
    let (fakes, feed, fleet) = following(scraped_once()).await;
    feed.send(line(1, 0, 5)).unwrap();
    until(&fleet, |all| all[0].running == 5.0).await;
    set_page(&fakes[0], streamed_page(0, 7));
    let next = fakes[0].feed();
    drop(feed);
    // none was due for ten minutes
    until(&fleet, |all| all[0].running == 7.0).await;
    followed(&next).await;
    next.send(line(9, 0, 8)).unwrap();
    until(&fleet, |all| all[0].running == 8.0).await;
}

#[tokio::test]
async fn a_silent_stream_leaves_the_load_to_scrapes() {
    let (fakes, feed, fleet) = following(quick()).await;
    push(&fleet, &feed, 1, 5).await;
    for running in [7, 8, 9] {
        set_page(&fakes[0], streamed_page(0, running));
        until(&fleet, |all| all[0].running == running as f32).await;
    }
    // and is tried again
    until(&fleet, |_| fakes[0].streams() > 1).await;
    push(&fleet, &feed, 1_000_000, 6).await;
}

#[tokio::test]
async fn garbage_and_lines_without_end_break_a_stream_off() {
    for garbage in ["<html>\n".to_owned(), "x".repeat(1 << 20)] {
        let (fakes, feed, fleet) = following(scraped_once()).await;
        feed.send(line(1, 0, 5)).unwrap();
        until(&fleet, |all| all[0].running == 5.0).await;
        set_page(&fakes[0], streamed_page(0, 7));
        feed.send(garbage).unwrap();
        until(&fleet, |all| all[0].running == 7.0).await;
        until(&fleet, |_| fakes[0].streams() > 1).await;
    }
}

#[tokio::test]
async fn another_engine_behind_the_same_server_is_seen_at_once() {
    let (fakes, feed, fleet) = following(scraped_once()).await;
    let work = |tokens: u32| format!("vllm:prefix_cache_queries_total {tokens}\n");
    feed.send(line(40, 0, 5)).unwrap();
    until(&fleet, |all| all[0].running == 5.0).await;
    // a scrape that sees the first engine's work, which a smaller step brings about
    set_page(&fakes[0], streamed_page(0, 1) + &work(5000));
    feed.send(line(0, 0, 0)).unwrap();
    until(&fleet, |_| fakes[0].scrapes() == 2).await;
    set_page(&fakes[0], streamed_page(0, 1) + &work(10));
    feed.send([line(7, 0, 1), String::new()].concat()).unwrap();
    until(&fleet, |all| all[0].running == 1.0).await;
    assert_eq!(fleet.view().restarts(0), 0);
    feed.send(line(1, 0, 2)).unwrap();
    let began = Instant::now();
    while fleet.view().restarts(0) != 1 {
        assert!(began.elapsed() < Duration::from_secs(300));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(fakes[0].scrapes(), 3);
}

#[tokio::test]
async fn a_replica_without_a_stream_is_scraped_as_ever() {
    let fakes = fakes(2).await;
    // one does not offer it, the other one does not have it
    set_page(&fakes[0], page(0, 3));
    set_page(&fakes[1], streamed_page(0, 3));
    let fleet = fleet(&fakes, quick()).await;
    until(&fleet, |_| fakes[1].streams() > 0).await;
    for running in [4, 5] {
        set_page(&fakes[0], page(0, running));
        set_page(&fakes[1], streamed_page(0, running));
        until(&fleet, |all| {
            all.iter().all(|one| one.running == running as f32)
        })
        .await;
    }
    assert_eq!(fakes[0].streams(), 0, "{STREAM}");
}

/// Numbers that are always equal are never seen to differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_of_pushed_load_is_never_torn() {
    let (_fakes, feed, fleet) = following(scraped_once()).await;
    feed.send(line(1, 1, 1)).unwrap();
    until(&fleet, |all| all[0].waiting == 1.0).await;
    for round in 0..300 {
        feed.send(line(2 + round, round as u32, round as u32))
            .unwrap();
        let one = &fleet.view().replicas[0];
        assert_eq!(one.waiting, one.running);
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}
