//! Views that are read while everything changes: lists, reports, requests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Answer, Fake, fakes, fleet, quick};
use penstock_fleet::{Backend, Fleet, Outcome, Source, View};
use penstock_routing::ReplicaId;

const REPLICAS: usize = 6;
/// Between the numbers of two reports: more than requests can be in flight.
const STEP: u32 = 100;
/// Reports of one replica.
const REPORTS: u32 = 5000;
/// Threads that send requests, and requests that each has in flight.
const SENDERS: usize = 2;
const HELD: usize = 8;

/// Numbers of one replica's `count`th report; they tell both.
fn report(replica: usize, count: u32) -> u32 {
    (replica as u32 * REPORTS + count + 1) * STEP
}

/// All numbers of a report follow from one.
fn page(number: u32) -> Vec<u8> {
    format!(
        "vllm:num_requests_waiting{{engine=\"0\"}} {number}\n\
         vllm:num_requests_running{{engine=\"0\"}} {number}\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"{number}\"}} 1\n\
         vllm:lora_requests_info{{max_lora=\"{number}\",running_lora_adapters=\"a{number}\"}} 1\n",
    )
    .into()
}

/// What the threads share.
struct World {
    fleet: Fleet,
    urls: Vec<String>,
    /// Reports that each replica has made.
    made: Vec<AtomicU32>,
    /// Where each id was seen first.
    homes: Mutex<HashMap<ReplicaId, String>>,
    /// Sets of replicas that were seen, as bits, and reports.
    lists: Mutex<HashSet<u32>>,
    reports: Mutex<HashSet<u32>>,
    ended: AtomicBool,
}

impl World {
    fn read(&self) {
        while !self.ended.load(Ordering::Relaxed) {
            let view = self.fleet.view();
            let ids: Vec<_> = view.replicas.iter().map(|one| one.id).collect();
            assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
            let mut list = 0;
            for place in 0..view.replicas.len() {
                let replica = self.replica(&view, place);
                assert_eq!(
                    list & (1 << replica),
                    0,
                    "{} is there twice",
                    view.url(place)
                );
                list |= 1 << replica;
                self.numbers(&view, place, replica);
            }
            self.lists.lock().unwrap().insert(list);
        }
    }

    /// Which replica is at a place; its id, address and URL are those of one.
    fn replica(&self, view: &View, place: usize) -> usize {
        let (one, url) = (&view.replicas[place], view.url(place));
        assert_eq!(format!("http://{}", one.address), **url);
        let mut homes = self.homes.lock().unwrap();
        let home = homes.entry(one.id).or_insert_with(|| url.to_string());
        assert_eq!(*home, **url, "{:?} was another one", one.id);
        self.urls.iter().position(|known| **known == **url).unwrap()
    }

    /// The numbers are those of one report, which this replica has made.
    fn numbers(&self, view: &View, place: usize, replica: usize) {
        let one = &view.replicas[place];
        let Some(waiting) = view.reported_waiting(place) else {
            assert_eq!((view.kv_tokens(place), one.max_adapters), (None, 0));
            return;
        };
        let number = waiting as u32;
        let made = self.made[replica].load(Ordering::SeqCst);
        let known = (report(replica, 0)..=report(replica, made - 1)).contains(&number);
        assert!(known, "replica {replica} has not reported {number}");
        assert_eq!(view.kv_tokens(place), Some(16.0 * waiting));
        assert_eq!(one.max_adapters, number);
        assert_eq!(*one.adapters, [format!("a{number}").into()]);
        let own = (SENDERS * HELD) as f32;
        let near = |load: f32, times: f32| (load - times * waiting).abs() <= own;
        assert!(near(one.waiting, 1.0), "{one:?}");
        assert!(near(one.waiting + one.running, 2.0), "{one:?}");
        self.reports.lock().unwrap().insert(number);
    }

    /// Sends requests to one replica after the other, in all states at once.
    fn send(&self) {
        let mut held = VecDeque::new();
        for turn in 0.. {
            if self.ended.load(Ordering::Relaxed) {
                return;
            }
            let view = self.fleet.view();
            let ready = view
                .replicas
                .iter()
                .filter(|one| one.condition.takes_requests());
            let Some(one) = ready.cycle().nth(turn % REPLICAS) else {
                continue;
            };
            if held.len() == HELD {
                let oldest: penstock_fleet::InFlight = held.pop_front().unwrap();
                oldest.end(Outcome::Served);
            }
            held.push_back(self.fleet.begin(one.id, 300.0, 400.0));
            let middle = held.len() / 2;
            held[middle].first_token();
        }
    }

    /// The next report of each replica, and every few rounds another list: four of the six.
    fn change(&self, fakes: &[Fake], round: u32) {
        for (replica, fake) in fakes.iter().enumerate() {
            let body = page(report(replica, round));
            self.made[replica].store(round + 1, Ordering::SeqCst);
            fake.set(|answers| answers.metrics = Answer::Page(body));
        }
        if round.is_multiple_of(5) {
            let first = round as usize / 5;
            let listed = (0..4).map(|at| Backend::new(&self.urls[(first + at) % REPLICAS]));
            let source = Source::Static(listed.collect());
            self.fleet.follow(self.fleet.next_source(source).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_is_never_torn() {
    let fakes = fakes(REPLICAS).await;
    for (replica, fake) in fakes.iter().enumerate() {
        fake.set(|answers| answers.metrics = Answer::Page(page(report(replica, 0))));
    }
    let mut settings = quick();
    settings.metrics.stale_s = 1000.0;
    let world = World {
        fleet: fleet(&fakes, settings).await,
        urls: fakes.iter().map(|fake| fake.url.clone()).collect(),
        made: (0..REPLICAS).map(|_| AtomicU32::new(1)).collect(),
        homes: Mutex::default(),
        lists: Mutex::default(),
        reports: Mutex::default(),
        ended: AtomicBool::new(false),
    };
    let runtime = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let threads = [World::read, World::read, World::send, World::send];
            let threads = threads.map(|run| {
                let world = &world;
                scope.spawn(move || run(world))
            });
            let began = Instant::now();
            for round in 1..REPORTS {
                let _inside = runtime.enter();
                world.change(&fakes, round);
                std::thread::sleep(Duration::from_millis(10));
                let lists = world.lists.lock().unwrap().len();
                let reports = world.reports.lock().unwrap().len();
                let torn = threads.iter().any(|thread| thread.is_finished());
                let ids = world.homes.lock().unwrap().len();
                if torn || (lists >= 6 && reports >= 500 && ids > 4 * REPLICAS) {
                    break;
                }
                assert!(
                    began.elapsed() < Duration::from_secs(300),
                    "{lists} {reports}"
                );
            }
            world.ended.store(true, Ordering::Relaxed);
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
        });
    });
    assert!(world.lists.lock().unwrap().len() >= 6);
    assert!(world.reports.lock().unwrap().len() >= 500);
    // those that came again have new ids
    assert!(world.homes.lock().unwrap().len() > 4 * REPLICAS);
}
