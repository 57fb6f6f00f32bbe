//! Ranks as threads with separate mappings, like processes.
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use penstock_collectives::{CommError, Group, GroupError, Reader, Writer};
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(300);

/// A file name, removed at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = format!("penstock-{name}-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(file))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn number(rank: usize, round: usize, i: usize) -> f32 {
    (rank * 7919 + round * 104_729 + i * 31) as f32 % 1000.0 - 500.0
}

/// Every rank receives every rank's part in every round, even with slow ranks.
fn exchange_rounds(ranks: usize, rounds: usize, len: usize, jitter: bool) {
    let place = Place::new("group");
    Group::create(&place.0, ranks, len).unwrap();
    thread::scope(|scope| {
        for rank in 0..ranks {
            let path = &place.0;
            scope.spawn(move || {
                let mut group = Group::join(path, rank, ranks, len, PATIENCE).unwrap();
                for round in 0..rounds {
                    if jitter && (rank + round) % 3 == 0 {
                        thread::sleep(Duration::from_micros(
                            (rank * 211 + round * 97) as u64 % 300,
                        ));
                    }
                    let used = 1 + (round * 13) % len;
                    for (i, item) in group.part()[..used].iter_mut().enumerate() {
                        *item = number(rank, round, i);
                    }
                    let parts = group.exchange().unwrap();
                    for other in 0..ranks {
                        for (i, &item) in parts.of(other, used).iter().enumerate() {
                            assert_eq!(item, number(other, round, i), "round {round}");
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn all_ranks_see_all_parts() {
    for ranks in 1..=4 {
        exchange_rounds(ranks, 300, 1000, true);
    }
    exchange_rounds(2, 20_000, 16, false);
}

#[test]
fn a_message_reaches_every_reader_in_order() {
    let place = Place::new("ring");
    let (readers, slots, capacity) = (3, 4, 512);
    Writer::create(&place.0, readers, slots, capacity).unwrap();
    let message = |n: usize| -> Vec<u8> {
        (0..n * 37 % (capacity + 1))
            .map(|i| (i + n) as u8)
            .collect()
    };
    thread::scope(|scope| {
        for reader in 0..readers {
            let path = &place.0;
            scope.spawn(move || {
                let mut ring = Reader::open(path, reader, readers, slots, capacity).unwrap();
                for n in 0..2000 {
                    if (n + reader) % 50 == 0 {
                        thread::sleep(Duration::from_micros(200));
                    }
                    let got = ring
                        .receive_with(PATIENCE, <[u8]>::to_vec)
                        .unwrap()
                        .unwrap();
                    assert_eq!(got, message(n), "message {n}");
                }
                assert!(!ring.ready());
            });
        }
        let mut ring = Writer::open(&place.0, readers, slots, capacity, PATIENCE).unwrap();
        for n in 0..2000 {
            ring.send(&message(n)).unwrap();
        }
        let long = ring.send(&vec![0; capacity + 1]);
        assert!(
            matches!(
                long,
                Err(CommError::TooLong {
                    len: 513,
                    capacity: 512
                })
            ),
            "{long:?}"
        );
    });
}

/// A sleeping rank in a group that is ended, and one whose peer never arrives.
#[test]
fn every_wait_ends() {
    let place = Place::new("lost");
    Group::create(&place.0, 2, 8).unwrap();
    let mut first = Group::join(&place.0, 0, 2, 8, Duration::from_millis(200)).unwrap();
    let silent = first.exchange().err();
    assert_eq!(
        silent,
        Some(GroupError::Silent {
            rank: 1,
            seconds: 0
        })
    );
    let second = Group::join(&place.0, 1, 2, 8, PATIENCE).unwrap();
    let mut first = Group::join(&place.0, 0, 2, 8, PATIENCE).unwrap();
    let began = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || first.exchange().err());
        thread::sleep(Duration::from_millis(100));
        second.end("rank 1 was killed");
        second.end("a later reason");
        let reason = GroupError::Ended("rank 1 was killed".into());
        assert_eq!(waiting.join().unwrap(), Some(reason));
    });
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_full_ring_holds_its_writer_and_an_ended_one_lets_go() {
    let place = Place::new("full");
    Writer::create(&place.0, 1, 2, 8).unwrap();
    let mut writer = Writer::open(&place.0, 1, 2, 8, Duration::from_millis(100)).unwrap();
    let mut reader = Reader::open(&place.0, 0, 1, 2, 8).unwrap();
    writer.send(b"one").unwrap();
    writer.send(b"two").unwrap();
    assert!(matches!(
        writer.send(b"three"),
        Err(CommError::Group(GroupError::Silent { .. }))
    ));
    let wait = Duration::from_secs(1);
    assert_eq!(
        reader.receive_with(wait, <[u8]>::to_vec),
        Ok(Some(b"one".to_vec()))
    );
    writer.send(b"three").unwrap();
    assert_eq!(
        reader.receive_with(wait, <[u8]>::to_vec),
        Ok(Some(b"two".to_vec()))
    );
    assert_eq!(
        reader.receive_with(wait, <[u8]>::to_vec),
        Ok(Some(b"three".to_vec()))
    );
    let none = reader.receive_with(Duration::from_millis(10), <[u8]>::to_vec);
    assert_eq!(none, Ok(None));
    writer.end("closed");
    assert_eq!(
        reader.receive_with(PATIENCE, |_| ()),
        Err(GroupError::Ended("closed".into()))
    );
}

#[test]
fn another_shape_is_refused() {
    let place = Place::new("shape");
    Group::create(&place.0, 2, 8).unwrap();
    let again = Group::create(&place.0, 2, 8).err().unwrap();
    assert!(matches!(again, CommError::File { .. }), "{again}");
    for (ranks, capacity) in [(3, 8), (2, 9), (2, 5000)] {
        let wrong = Group::join(&place.0, 0, ranks, capacity, PATIENCE)
            .err()
            .unwrap();
        assert!(matches!(wrong, CommError::Shape { .. }), "{wrong}");
    }
    let ring = Reader::open(&place.0, 0, 1, 2, 8).err().unwrap();
    assert!(matches!(ring, CommError::Shape { .. }), "{ring}");
    let gone = Group::join(&place.0.with_extension("no"), 0, 2, 8, PATIENCE)
        .err()
        .unwrap();
    assert!(matches!(gone, CommError::File { .. }), "{gone}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]
    #[test]
    fn exchanges_of_any_shape(ranks in 1usize..5, rounds in 1usize..60, len in 1usize..3000) {
        exchange_rounds(ranks, rounds, len, len % 2 == 0);
    }
}
