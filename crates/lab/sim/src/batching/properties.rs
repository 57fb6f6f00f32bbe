#![allow(clippy::unwrap_used)]
//! Invariants of the batcher for arbitrary requests.

use std::collections::HashMap;

use penstock_wire::{Finish, StepStats};
use proptest::prelude::*;

use super::tests::{Record, Run, ask, profile};
use crate::profile::Profile;
use crate::timing::Timing;

#[derive(Debug, Clone)]
enum Event {
    Add {
        from: u32,
        length: u32,
        max_tokens: u32,
    },
    Cancel(u64),
    CancelInStep(u64),
    Step,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        // Few distinct first tokens, so that requests share prefixes.
        3 => (0..4u32, 1..90u32, 1..60u32).prop_map(|(from, length, max_tokens)| Event::Add {
            from: 1 + from * 100,
            length,
            max_tokens
        }),
        1 => (0..40u64).prop_map(Event::Cancel),
        1 => (0..40u64).prop_map(Event::CancelInStep),
        6 => Just(Event::Step),
    ];
    prop::collection::vec(event, 0..120)
}

fn play(events: &[Event], profile: Profile) -> (HashMap<u64, Record>, u64, StepStats) {
    let budget = profile.max_num_batched_tokens;
    let mut run = Run::new(profile);
    let mut asked = 0;
    for event in events {
        match event {
            Event::Add {
                from,
                length,
                max_tokens,
            } => {
                run.add(asked, ask(*from, *length, *max_tokens));
                asked += 1;
            }
            Event::Cancel(id) => run.batcher.cancel(*id),
            Event::CancelInStep(id) => {
                if let Some(cost) = run.batcher.schedule(run.now) {
                    run.batcher.cancel(*id);
                    run.now += cost;
                    let step = run.batcher.apply();
                    run.note(&step);
                }
            }
            Event::Step => drop(run.step()),
        }
        let stats = run.batcher.stats();
        assert!(stats.blocks_used <= stats.blocks_total && stats.batch_tokens <= budget);
        assert_eq!(run.batcher.fault(), None);
    }
    while run.step() {}
    let stats = run.batcher.stats();
    (run.records, asked, stats)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_is_asked(
        events in events(),
        seqs in 1..6u32,
        budget in 6..80u32,
        blocks in 1..16u32,
        prefix_caching: bool,
    ) {
        let profile = Profile {
            max_num_seqs: seqs,
            max_num_batched_tokens: budget,
            num_blocks: blocks,
            max_queue: 12,
            prefix_caching,
            timing: Timing { jitter: 0.3, ..profile().timing },
            ..profile()
        };
        let (records, asked, stats) = play(&events, profile.clone());
        let adds: Vec<_> = events.iter().filter_map(|event| match event {
            Event::Add { from, length, max_tokens } => Some((*from, *length, *max_tokens)),
            _ => None,
        }).collect();
        prop_assert_eq!(asked as usize, records.len());
        prop_assert_eq!((stats.running, stats.waiting, stats.blocks_used), (0, 0, 0));
        for (id, record) in &records {
            let (from, length, max_tokens) = adds[*id as usize];
            prop_assert_eq!(record.finishes.len(), 1);
            prop_assert!(record.times.windows(2).all(|pair| pair[0] < pair[1]));
            if record.finishes == [Finish::Length] {
                prop_assert_eq!(record.tokens.len() as u32, max_tokens);
            }
            // Preempted or not, cached or not: the answer is a prefix of the one that the request
            // gets when it is alone.
            let roomy = Profile { num_blocks: 64, ..profile.clone() };
            let mut alone = Run::new(roomy);
            alone.add(0, ask(from, length, max_tokens));
            let alone = &alone.finish()[&0];
            prop_assert!(alone.tokens.starts_with(&record.tokens));
        }
        let (again, _, _) = play(&events, profile);
        prop_assert_eq!(records, again);
    }
}
