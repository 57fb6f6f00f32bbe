//! Collectives of one rank, of ranks in shared memory, and of ranks over streams.

use crate::common::Scratch;
use crate::common::ranks::free_address;
use penstock_collectives::Group;
use penstock_decoder::{Alone, Collectives, GroupWiring, Joined, Wiring, join};
use penstock_kernels::{Cpu, Isa, Mode};

/// Tokens whose bits are a NaN, an infinity or a subnormal in f32 are transferred unchanged.
const DRAWN: [u32; 6] = [7, 0, u32::MAX, 0x7f80_0001, 0x7f80_0000, 49_151];

const RANKS: usize = 3;
const CAPACITY: usize = 16 << 10;

/// Runs `work` on every rank of a group: in shared memory, then over streams.
fn on_groups<T: Send>(name: &str, work: impl Fn(usize, Joined) -> T + Sync) -> [Vec<T>; 2] {
    let scratch = Scratch::new(name);
    let path = scratch.path().join("group");
    Group::create(&path, RANKS, CAPACITY).unwrap();
    let address = free_address();
    let memory = |rank| GroupWiring::Memory {
        path: path.clone(),
        rank,
        ranks: RANKS,
        capacity: CAPACITY,
    };
    let stream = |rank| GroupWiring::Stream {
        address,
        key: "5a".repeat(32),
        rank,
        ranks: RANKS,
        capacity: CAPACITY,
    };
    let run = |group: &(dyn Fn(usize) -> GroupWiring + Sync)| {
        std::thread::scope(|scope| {
            let one = |rank: usize| {
                let wiring = Wiring {
                    group: Some(group(rank)),
                    before: None,
                    after: None,
                    patience_s: 60.0,
                };
                let work = &work;
                scope.spawn(move || work(rank, join(&wiring).unwrap().0))
            };
            let threads: Vec<_> = (0..RANKS).map(one).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    };
    [run(&memory), run(&stream)]
}

#[test]
fn tokens_of_the_first_rank_reach_its_whole_group() {
    on_groups("broadcast", |rank, mut ranks| {
        // Longer than one exchange, empty, and several in a row.
        for repeat in [1, 0, 3000, 2] {
            let want = DRAWN.repeat(repeat);
            let mut tokens = want.clone();
            if rank > 0 {
                tokens.fill(rank as u32);
            }
            ranks.broadcast_tokens(&mut tokens).unwrap();
            assert_eq!(tokens, want, "rank {rank}");
        }
    });
}

/// Numbers whose sum depends on the order of addition.
fn term(rank: usize, i: usize) -> f32 {
    let large = [1e9, -1e9, 1.0 / 3.0, 3e8][(rank + i) % 4];
    large + (i % 11) as f32 * 0.37 + rank as f32
}

#[test]
fn sums_are_in_the_order_of_ranks() {
    let sizes = [1, 2, 7, 31, 64, 577, CAPACITY - 1, CAPACITY];
    let found = on_groups("sums", |rank, mut ranks| {
        let cpu = Cpu::new(Isa::detect(), 1).unwrap();
        let mut sums = Vec::new();
        for len in sizes {
            let mut x: Vec<f32> = (0..len).map(|i| i as f32 * 0.1).collect();
            let own = &mut |out: &mut [f32], _: Mode| {
                let numbers = out.iter_mut().enumerate();
                numbers.for_each(|(i, out)| *out = term(rank, i));
            };
            ranks.reduce(&cpu, &mut x, own).unwrap();
            sums.push(x);
            let mut x: Vec<f32> = (0..len).map(|i| term(rank, i)).collect();
            ranks.all_reduce(&cpu, &mut x).unwrap();
            sums.push(x);
        }
        sums
    });
    let sum = |x: f32, i: usize| (0..RANKS).fold(x, |sum, rank| sum + term(rank, i));
    let want: Vec<Vec<f32>> = sizes
        .into_iter()
        .flat_map(|len| [0.1, 0.0].map(|each| (0..len).map(|i| sum(i as f32 * each, i)).collect()))
        .collect();
    assert!(found.iter().flatten().all(|sums| *sums == want));
    let other = |i: usize| (0..RANKS).rev().fold(0.0, |sum, rank| sum + term(rank, i));
    assert!(
        (0..577).any(|i| other(i) != sum(0.0, i)),
        "the order matters"
    );
}

#[test]
fn a_rank_at_another_step_is_an_error_over_streams() {
    let [_, streams] = on_groups("steps", |rank, mut ranks| {
        let cpu = Cpu::new(Isa::detect(), 1).unwrap();
        let mut x = vec![0.0; 5];
        ranks.all_reduce(&cpu, &mut x).unwrap();
        let mut x = vec![0.0; if rank == 2 { 4 } else { 5 }];
        let found = ranks.all_reduce(&cpu, &mut x);
        if let Err(lost) = &found {
            ranks.end(&lost.to_string());
        }
        found.map_err(|lost| lost.to_string())
    });
    let said = streams[0].clone().unwrap_err();
    assert!(said.contains("computed another step"), "{said}");
    assert!(streams.iter().all(Result::is_err));
}

#[test]
fn a_rank_alone_keeps_its_tokens() {
    let stage = Joined {
        group: None,
        before: None,
        after: None,
    };
    let alone: [Box<dyn Collectives>; 2] = [Box::new(Alone), Box::new(stage)];
    for mut ranks in alone {
        let mut tokens = DRAWN;
        ranks.broadcast_tokens(&mut tokens).unwrap();
        assert_eq!(tokens, DRAWN);
    }
}
