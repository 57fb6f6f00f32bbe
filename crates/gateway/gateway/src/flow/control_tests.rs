//! Tests of waiting requests, under tokio's paused clock, so that all times are exact.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_api_types::ApiError;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::flow::control::FlowControl;
use crate::flow::{Class, FlowSettings, Load};

/// Load of a pool that has room for `most` requests.
#[derive(Debug, Clone)]
struct Room {
    running: Arc<AtomicUsize>,
    most: usize,
}

impl Load for Room {
    fn saturated(&self, _: &FlowSettings) -> bool {
        self.running.load(Ordering::SeqCst) >= self.most
    }
}

#[derive(Clone)]
struct Rig {
    flow: Arc<FlowControl>,
    room: Room,
    /// Names of the requests that were routed, in order.
    routed: Arc<Mutex<Vec<String>>>,
}

fn class(priority: i32, tenant: &str) -> Class {
    Class {
        priority,
        tenant: tenant.into(),
    }
}

impl Rig {
    fn new(most: usize, settings: FlowSettings) -> Self {
        let room = Room {
            running: Arc::default(),
            most,
        };
        Self {
            flow: FlowControl::new(settings, room.clone()),
            room,
            routed: Arc::default(),
        }
    }

    fn queueing(most: usize) -> Self {
        Self::new(
            most,
            FlowSettings {
                queue: true,
                ..FlowSettings::default()
            },
        )
    }

    /// A request that runs for a second once it is routed.
    async fn serve(self, class: Class, name: String) -> Result<(), ApiError> {
        let turn = self.flow.visit(class, 100, 100).pass().await?;
        let running = self.room.running.fetch_add(1, Ordering::SeqCst) + 1;
        drop(turn);
        assert!(running <= self.room.most, "{running} at once");
        self.routed.lock().unwrap().push(name);
        sleep(Duration::from_secs(1)).await;
        self.room.running.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn start(&self, class: Class, name: &str) -> JoinHandle<Result<(), ApiError>> {
        tokio::spawn(self.clone().serve(class, name.to_owned()))
    }

    fn waiting(&self) -> usize {
        self.flow.counts().bands.iter().map(|band| band.1).sum()
    }

    fn routed(&self) -> String {
        self.routed.lock().unwrap().join(" ")
    }
}

/// Lets spawned requests run until each of them waits.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_pool_takes_one_for_each_that_ends_in_order_of_priority() {
    let rig = Rig::queueing(2);
    let mut all = vec![
        rig.start(class(0, ""), "first"),
        rig.start(class(0, ""), "second"),
    ];
    settle().await;
    assert_eq!((rig.routed().as_str(), rig.waiting()), ("first second", 0));
    for (priority, tenant, name) in [
        (0, "a", "a1"),
        (0, "a", "a2"),
        (0, "b", "b1"),
        (5, "a", "urgent"),
        (0, "b", "b2"),
    ] {
        all.push(rig.start(class(priority, tenant), name));
        settle().await;
    }
    assert_eq!(rig.waiting(), 5);
    for one in all {
        one.await.unwrap().unwrap();
    }
    assert_eq!(rig.routed(), "first second urgent a1 b1 a2 b2");
    let counts = rig.flow.counts();
    assert_eq!((counts.released, counts.refused), (5, [0; 4]));
    assert!(
        counts.waited_s > 5.0 && counts.waited_s < 12.0,
        "{counts:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_queue_only_negative_priorities_are_refused() {
    let rig = Rig::new(1, FlowSettings::default());
    rig.start(class(-1, ""), "batch");
    settle().await;
    let refused = rig
        .flow
        .visit(class(-1, ""), 1, 1)
        .pass()
        .await
        .unwrap_err();
    assert_eq!((refused.status, refused.retry_after_s), (429, Some(1)));
    assert!(refused.message.contains("do not wait"), "{refused}");
    drop(rig.flow.visit(class(0, ""), 1, 1).pass().await.unwrap());
    assert_eq!(rig.flow.counts().refused, [1, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn bounds_of_number_bytes_and_time_refuse() {
    let settings = FlowSettings {
        queue: true,
        max_waiting: 2,
        max_waiting_bytes: 1000,
        max_wait_s: 3.0,
        ..FlowSettings::default()
    };
    let rig = Rig::new(0, settings);
    let began = Instant::now();
    let large = rig
        .flow
        .visit(class(0, ""), 1001, 1)
        .pass()
        .await
        .unwrap_err();
    assert!(large.message.contains("the queue is full"), "{large}");
    let waiting = [rig.start(class(0, ""), "1"), rig.start(class(0, ""), "2")];
    settle().await;
    let third = rig.flow.visit(class(0, ""), 1, 1).pass().await.unwrap_err();
    assert_eq!(third.status, 429);
    for one in waiting {
        let late = one.await.unwrap().unwrap_err();
        assert!(late.message.contains("as long as it may"), "{late}");
    }
    assert!(began.elapsed() < Duration::from_millis(3100));
    assert_eq!(rig.flow.counts().refused, [0, 2, 2, 0]);
    assert_eq!(rig.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_frees_its_place() {
    let rig = Rig::queueing(1);
    let first = rig.start(class(0, ""), "first");
    settle().await;
    let leaves = rig.start(class(0, ""), "leaves");
    let stays = rig.start(class(0, ""), "stays");
    settle().await;
    assert_eq!(rig.waiting(), 2);
    leaves.abort();
    settle().await;
    assert_eq!(rig.waiting(), 1);
    first.await.unwrap().unwrap();
    stays.await.unwrap().unwrap();
    assert_eq!(rig.routed(), "first stays");
    assert_eq!(rig.flow.counts().refused, [0, 0, 0, 1]);
}

/// Clients that disconnect at any moment, even while their request has the turn, delay no others.
#[tokio::test(start_paused = true)]
async fn every_request_ends_once_whenever_clients_leave() {
    let rig = Rig::queueing(3);
    let mut all = Vec::new();
    for number in 0u64..300 {
        let tenant = format!("{}", number % 7);
        let class = class((number % 3) as i32, &tenant);
        let request = rig.clone().serve(class, number.to_string());
        // A request that is cancelled while it runs must release its room, as a reservation does.
        let (rig, patience) = (
            rig.clone(),
            Duration::from_micros(number * 331_771 % 40_000_000),
        );
        all.push(tokio::spawn(async move {
            let ended = timeout(patience, request).await.is_ok();
            let name = number.to_string();
            let routed = rig.routed.lock().unwrap().contains(&name);
            if routed && !ended {
                rig.room.running.fetch_sub(1, Ordering::SeqCst);
            }
            ended
        }));
        sleep(Duration::from_millis(number % 20)).await;
    }
    let mut served = 0;
    for one in all {
        served += usize::from(one.await.unwrap());
    }
    assert!(served > 50, "{served}");
    assert_eq!(rig.waiting(), 0);
    assert_eq!(rig.room.running.load(Ordering::SeqCst), 0);
    let mut routed = rig.routed.lock().unwrap().clone();
    routed.sort();
    let number = routed.len();
    routed.dedup();
    assert_eq!(routed.len(), number, "each once");
    let last = rig.start(class(0, ""), "last").await.unwrap();
    last.unwrap();
}

/// Replicas have room, but not for this request: its pauses grow, and its wait is bounded.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_again_and_again_does_not_spin() {
    let rig = Rig::queueing(1);
    let mut visit = rig.flow.visit(class(0, ""), 1, 1);
    let began = Instant::now();
    drop(visit.pass().await.unwrap());
    let mut rounds = 0;
    let refused = loop {
        match visit.pass_again().await {
            Ok(turn) => drop(turn),
            Err(refused) => break refused,
        }
        rounds += 1;
    };
    assert!((60..80).contains(&rounds), "{rounds}");
    assert_eq!(refused.status, 429);
    assert_eq!(began.elapsed().as_secs(), 60);
    assert_eq!(rig.flow.counts().refused, [0, 0, 1, 0]);
}
