//! Groups of ranks over streams on loopback.
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use penstock_collectives::{GroupError, Key, Star, Stream};
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(300);
const KEY: Key = [7; 32];
const CAPACITY: usize = 1 << 20;

fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn star(at: SocketAddr, rank: usize, ranks: usize) -> Star {
    Star::new(at, KEY, rank, ranks, CAPACITY, PATIENCE).unwrap()
}

/// Runs each rank's part on its own thread, after all ends are created.
fn run<T: Send>(ranks: usize, work: impl Fn(Star) -> T + Sync) -> Vec<T> {
    let at = free_address();
    let ends: Vec<Star> = (0..ranks).map(|rank| star(at, rank, ranks)).collect();
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ends
            .into_iter()
            .map(|end| scope.spawn(move || work(end)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// A rank's message in a round.
fn part(rank: usize, round: usize, len: usize) -> Vec<u8> {
    vec![(16 * round + rank) as u8; len]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn parts_are_in_the_order_of_ranks_whoever_comes_first(
        ranks in 2usize..6,
        rounds in prop::collection::vec((0usize..70_000, any::<u64>()), 1..4),
    ) {
        let found = run(ranks, |mut end| {
            let mut got = Vec::new();
            for (round, &(len, order)) in rounds.iter().enumerate() {
                thread::sleep(Duration::from_millis((order >> (8 * end.rank())) & 7));
                let own = part(end.rank(), round, len + end.rank());
                let parts = end.gather(&own).unwrap();
                assert_eq!(parts.is_some(), end.rank() == 0);
                let whole: Vec<u8> = parts.into_iter().flatten().flatten().collect();
                got.push(end.share(&whole).unwrap().unwrap_or(whole));
            }
            got
        });
        let want: Vec<Vec<u8>> = rounds
            .iter()
            .enumerate()
            .map(|(round, &(len, _))| {
                (1..ranks).flat_map(|rank| part(rank, round, len + rank)).collect()
            })
            .collect();
        prop_assert!(found.iter().all(|got| *got == want));
    }
}

#[test]
fn a_rank_that_ends_ends_the_waits_of_all() {
    for gone in 0..3 {
        let began = Instant::now();
        let found = run(3, |mut end| {
            end.gather(b"first").unwrap();
            end.share(b"first").unwrap();
            if end.rank() == gone {
                end.end("told to");
            }
            let lost = end.gather(b"second").map(drop);
            (lost.and_then(|()| end.share(b"second").map(drop)), end)
        });
        // Failed ends are still alive here: the waits of other ranks end nevertheless.
        let (found, _ends): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        assert_eq!(found[gone], Err(GroupError::Ended("told to".into())));
        for (rank, lost) in found.iter().enumerate().filter(|&(rank, _)| rank != gone) {
            let said = lost.as_ref().unwrap_err().to_string();
            let peer = if rank == 0 { gone } else { 0 };
            assert!(
                said.contains(&format!("rank {peer} of the group")),
                "{said}"
            );
        }
        assert!(began.elapsed() < PATIENCE);
    }
}

#[test]
fn a_rank_that_is_silent_ends_the_wait_after_the_patience() {
    let (at, short) = (free_address(), Duration::from_millis(200));
    let mut middle = Star::new(at, KEY, 0, 3, CAPACITY, short).unwrap();
    let missing = middle.gather(b"").unwrap_err();
    assert_eq!(
        missing,
        GroupError::Silent {
            rank: 1,
            seconds: 0
        }
    );

    // The other rank speaks once within it, on a busy machine, too.
    let (at, long) = (free_address(), Duration::from_secs(5));
    let mut middle = Star::new(at, KEY, 0, 2, CAPACITY, long).unwrap();
    let mut other = star(at, 1, 2);
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            assert!(middle.gather(b"").unwrap().is_some());
            middle.gather(b"").unwrap_err()
        });
        other.gather(b"there, once").unwrap();
        let lost = waiting.join().unwrap();
        assert_eq!(
            lost,
            GroupError::Silent {
                rank: 1,
                seconds: 5
            }
        );
    });
}

#[test]
fn a_caller_with_another_key_is_no_rank() {
    let at = free_address();
    let (mut middle, mut friend) = (star(at, 0, 2), star(at, 1, 2));
    let mut stranger = Star::new(at, [8; 32], 1, 2, CAPACITY, PATIENCE).unwrap();
    thread::scope(|scope| {
        let middle = scope.spawn(move || middle.gather(b"").unwrap().unwrap());
        let said = stranger.gather(b"forged").unwrap_err().to_string();
        assert!(said.contains("does not hold the key"), "{said}");
        friend.gather(b"true").unwrap();
        assert_eq!(middle.join().unwrap(), [b"true"]);
    });
}

#[test]
fn a_caller_of_another_group_ends_it() {
    // A wrong rank, a wrong number of ranks, a wrong capacity, no greeting.
    let greetings = [[2, 2, 99], [0, 2, 99], [1, 3, 99], [1, 2, 98]];
    let greetings = greetings.map(|words: [u64; 3]| words.map(u64::to_le_bytes).concat());
    for said in greetings.iter().map(Vec::as_slice).chain([&b"hello"[..]]) {
        let at = free_address();
        let mut middle = Star::new(at, KEY, 0, 2, 99, PATIENCE).unwrap();
        thread::scope(|scope| {
            let middle = scope.spawn(move || middle.gather(b"").unwrap_err());
            let mut caller = Stream::connect(at, &KEY, PATIENCE).unwrap();
            caller.send(said).unwrap();
            let lost = middle.join().unwrap().to_string();
            assert!(lost.contains("not of this group"), "{lost}");
        });
    }
}

#[test]
fn a_message_over_the_capacity_is_refused() {
    let at = free_address();
    let mut ends = [0, 1].map(|rank| Star::new(at, KEY, rank, 2, 99, PATIENCE).unwrap());
    let [middle, other] = &mut ends;
    thread::scope(|scope| {
        let middle = scope.spawn(move || middle.gather(b"").unwrap_err());
        other.gather(&[0; 100]).unwrap();
        let lost = middle.join().unwrap().to_string();
        assert!(lost.contains("99 are allowed"), "{lost}");
    });
}
