//! Collectives of one rank and of ranks that share memory.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::Scratch;
use penstock_comm::Group;
use penstock_decoder::{Alone, Collectives, Local};

/// Bit patterns that are a NaN, an infinity or a denormal as f32 come through too.
const DRAWN: [u32; 6] = [7, 0, u32::MAX, 0x7f80_0001, 0x7f80_0000, 49_151];

#[test]
fn tokens_of_the_first_rank_reach_its_whole_group() {
    const RANKS: usize = 3;
    let scratch = Scratch::new("broadcast");
    let path = scratch.path().join("group");
    Group::create(&path, RANKS, 16 << 10).unwrap();
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let path = &path;
            scope.spawn(move || {
                let group = Group::join(path, rank, RANKS, 16 << 10, Duration::from_secs(60));
                let mut ranks = Local {
                    group: Some(group.unwrap()),
                    before: None,
                    after: None,
                };
                // Longer than one exchange, none at all, and several in a row.
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
    });
}

#[test]
fn a_rank_alone_keeps_its_tokens() {
    let stage = Local {
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
