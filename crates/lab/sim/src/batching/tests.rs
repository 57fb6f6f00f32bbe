#![allow(clippy::unwrap_used)]
//! Times of steps, compared with values computed by hand (in ms in the comments).

use std::collections::HashMap;

use super::*;
use crate::timing::Timing;

const MS: Duration = Duration::from_millis(1);

/// A step takes 1 ms, plus 1 ms per decode and 0.1 ms per prompt token.
pub(super) fn profile() -> Profile {
    Profile {
        max_model_len: 1024,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_queue: 100,
        block_size: 16,
        num_blocks: 128,
        timing: Timing {
            base_us: 1000.0,
            decode_us: vec![(1, 1000.0)],
            prompt_us_per_token: 100.0,
            ..Timing::instant()
        },
        ..Profile::default()
    }
}

fn batcher(profile: Profile) -> Batcher {
    assert_eq!(profile.complaint(), None);
    let answers = Answers {
        words: (1..1000).collect(),
        eos: 0,
        seed: 1,
        lengths: None,
    };
    Batcher::new(profile, answers)
}

/// A request with prompt `from`, `from` + 1, ...
pub(super) fn ask(from: u32, length: u32, max_tokens: u32) -> Ask {
    Ask {
        request: TokenRequest {
            prompt: (from..from + length).collect(),
            max_tokens,
            ignore_eos: true,
            ..TokenRequest::default()
        },
        ..Ask::default()
    }
}

/// Outcome of one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Record {
    /// Time of each token.
    pub(super) times: Vec<Duration>,
    pub(super) tokens: Vec<u32>,
    pub(super) finishes: Vec<Finish>,
    cached: u32,
    queue_us: u32,
}

pub(super) struct Run {
    pub(super) batcher: Batcher,
    pub(super) now: Duration,
    pub(super) records: HashMap<u64, Record>,
}

impl Run {
    pub(super) fn new(profile: Profile) -> Self {
        Self {
            batcher: batcher(profile),
            now: Duration::ZERO,
            records: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, id: u64, ask: Ask) {
        self.batcher.add(id, ask, self.now);
    }

    pub(super) fn note(&mut self, step: &Step) {
        for output in &step.outputs {
            let record = self.records.entry(output.id).or_default();
            record.tokens.extend(&output.tokens);
            record.times.extend(output.tokens.iter().map(|_| self.now));
            record.cached += output.cached_tokens;
            record.queue_us += output.queue_us;
            if output.finish != Finish::None {
                record.finishes.push(output.finish);
            }
        }
    }

    /// Runs one step; returns false if there is nothing to compute.
    pub(super) fn step(&mut self) -> bool {
        let Some(cost) = self.batcher.schedule(self.now) else {
            let step = self.batcher.idle_step();
            self.note(&step);
            return false;
        };
        self.now += cost;
        let step = self.batcher.apply();
        self.note(&step);
        assert_eq!(self.batcher.fault(), None);
        true
    }

    pub(super) fn finish(mut self) -> HashMap<u64, Record> {
        while self.step() {}
        assert_eq!(self.batcher.stats().blocks_used, 0);
        self.records
    }
}

fn millis(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|t| t.as_secs_f64() * 1e3).collect()
}

#[test]
fn one_request_alone() {
    let mut run = Run::new(profile());
    run.add(1, ask(1, 10, 4));
    let record = &run.finish()[&1];
    // The prompt's step: 1 + 10 x 0.1. Each decode step: 1 + 1.
    assert_eq!(millis(&record.times), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(record.finishes, [Finish::Length]);
}

#[test]
fn a_long_prompt_comes_in_chunks_of_the_budget() {
    let mut run = Run::new(profile());
    run.add(1, ask(1, 150, 2));
    // Steps of 64, 64 and 22 prompt tokens take 7.4 + 7.4 + 3.2.
    assert_eq!(millis(&run.finish()[&1].times), [18.0, 20.0]);
}

#[test]
fn a_newcomer_joins_the_decodes_and_slows_them() {
    let mut run = Run::new(profile());
    run.batcher.fixed = Some(64);
    run.add(1, ask(1, 10, 4));
    assert!(run.step());
    run.add(2, ask(500, 20, 2));
    let records = run.finish();
    // From 2 ms: the first decodes (1) with the second's prompt (20 x 0.1) and the base, until 6.
    // Both decode (1 + 2) until 9; the first alone until 11.
    assert_eq!(millis(&records[&1].times), [2.0, 6.0, 9.0, 11.0]);
    assert_eq!(millis(&records[&2].times), [6.0, 9.0]);
}

#[test]
fn the_budget_goes_to_decodes_first_and_then_in_order_of_arrival() {
    let mut run = Run::new(profile());
    run.batcher.fixed = Some(64);
    run.add(1, ask(1, 10, 3));
    assert!(run.step());
    run.add(2, ask(200, 100, 1));
    run.add(3, ask(500, 10, 1));
    let records = run.finish();
    // 1 decode + 63 prompt tokens: 8.3 until 10.3. 1 decode + 37 + 10: 6.7 until 17.
    assert_eq!(millis(&records[&1].times), [2.0, 10.3, 17.0]);
    assert_eq!(millis(&records[&2].times), [17.0]);
    assert_eq!(millis(&records[&3].times), [17.0]);
}

#[test]
fn a_prompt_beside_a_decode_is_bounded_by_what_steps_took() {
    let mut profile = profile();
    profile.timing.prompt_us_per_token = 90.0;
    let mut run = Run::new(profile);
    run.add(1, ask(1, 20, 7));
    assert!(run.step());
    run.add(2, ask(200, 80, 1));
    let records = run.finish();
    // Two steps decode alone, 2 ms each, and measure that. Two more have the minimum of 32 prompt
    // tokens too, which adds 2.88 ms. 16 prompt tokens remain.
    let ends = [2.8, 4.8, 6.8, 11.68, 16.56, 20.0, 22.0];
    assert_eq!(millis(&records[&1].times), ends);
    assert_eq!(millis(&records[&2].times), [20.0]);
}

#[test]
fn no_more_run_than_may_and_the_others_wait() {
    let mut run = Run::new(Profile {
        max_num_seqs: 1,
        ..profile()
    });
    run.add(1, ask(1, 10, 3));
    run.add(2, ask(500, 10, 1));
    let records = run.finish();
    assert_eq!(millis(&records[&1].times), [2.0, 4.0, 6.0]);
    assert_eq!(millis(&records[&2].times), [8.0]);
    assert_eq!((records[&1].queue_us, records[&2].queue_us), (0, 6_000));
}

#[test]
fn context_costs_by_what_is_attended_to() {
    let mut run = Run::new(Profile {
        timing: Timing {
            base_us: 1000.0,
            decode_us_per_context_ktoken: 1000.0,
            prompt_us_per_context_ktoken: 1000.0,
            ..Timing::instant()
        },
        ..profile()
    });
    run.add(1, ask(1, 100, 2));
    // Pairs of tokens: 64 x 65 / 2 = 2080, then 36 x 64 + 36 x 37 / 2 = 2970. The decode attends to
    // 101.
    let expected = [1.0 + 2.080 + 1.0 + 2.970, 1.0 + 0.101];
    let times = millis(&run.finish()[&1].times);
    assert!((times[0] - expected[0]).abs() < 1e-6);
    assert!((times[1] - times[0] - expected[1]).abs() < 1e-6);
}

#[test]
fn a_prefix_is_taken_from_the_cache() {
    let mut run = Run::new(profile());
    run.add(1, ask(1, 48, 1));
    while run.step() {}
    run.add(2, ask(1, 48, 1));
    while run.step() {}
    let records = &run.records;
    // 48 tokens are 3 blocks; the last token is always computed, so 2 blocks are reused.
    assert_eq!((records[&1].cached, records[&2].cached), (0, 32));
    assert_eq!(millis(&records[&1].times), [5.8]);
    assert_eq!(millis(&records[&2].times), [5.8 + 1.0 + 1.6]);
    let stats = run.batcher.stats();
    let totals = (
        stats.prefix_query_tokens_total,
        stats.prefix_hit_tokens_total,
    );
    assert_eq!(totals, (96, 32));
}

#[test]
fn a_prefix_in_flight_is_waited_for() {
    let mut run = Run::new(profile());
    run.add(1, ask(1, 48, 1));
    run.add(2, ask(1, 48, 1));
    let records = run.finish();
    assert_eq!(millis(&records[&1].times), [5.8]);
    assert_eq!(millis(&records[&2].times), [5.8 + 2.6]);
    assert_eq!(records[&2].cached, 32);
}

#[test]
fn salts_and_those_who_do_not_want_it_have_no_cache() {
    let mut run = Run::new(profile());
    run.add(1, ask(1, 48, 1));
    while run.step() {}
    let mut salted = ask(1, 48, 1);
    salted.request.cache_salt = b"pepper".to_vec();
    let mut fresh = ask(1, 48, 1);
    fresh.request.skip_prefix_cache = true;
    run.add(2, salted);
    run.add(3, fresh);
    let records = run.finish();
    assert_eq!((records[&2].cached, records[&3].cached), (0, 0));
}

#[test]
fn the_least_recently_used_prefix_goes_first() {
    let mut run = Run::new(Profile {
        num_blocks: 8,
        ..profile()
    });
    // Each prompt leaves 3 published blocks; the third needs 4 and evicts some of the first.
    for (id, from) in [(1, 1), (2, 100), (3, 200), (4, 100)] {
        run.add(id, ask(from, 50, 1));
        while run.step() {}
    }
    assert_eq!(run.records[&4].cached, 48);
    run.add(5, ask(1, 50, 1));
    assert!(run.finish()[&5].cached < 48);
}

#[test]
fn exhausted_blocks_preempt_the_latest_which_loses_nothing() {
    let tight = Profile {
        num_blocks: 6,
        prefix_caching: false,
        ..profile()
    };
    let mut run = Run::new(tight.clone());
    run.add(1, ask(1, 30, 40));
    run.add(2, ask(500, 30, 40));
    while run.step() {}
    // Both requests reach 70 tokens, which are 5 blocks.
    assert!(run.batcher.stats().preemptions_total > 0);
    let both = run.finish();
    for id in [1, 2] {
        let mut alone = Run::new(tight.clone());
        alone.add(
            id,
            if id == 1 {
                ask(1, 30, 40)
            } else {
                ask(500, 30, 40)
            },
        );
        assert_eq!(alone.finish()[&id].tokens, both[&id].tokens);
        assert_eq!(both[&id].finishes, [Finish::Length]);
    }
    assert!(both[&1].times.last() < both[&2].times.last());
}

#[test]
fn what_never_fits_is_an_error() {
    let mut run = Run::new(Profile {
        num_blocks: 2,
        ..profile()
    });
    run.add(1, ask(1, 32, 4));
    run.add(2, ask(1, 2000, 4));
    run.add(3, ask(60_000, 4, 4));
    run.add(4, ask(1, 30, 40));
    let records = run.finish();
    for id in 1..=4 {
        assert_eq!(records[&id].finishes, [Finish::Unfit], "{id}");
    }
    // The last request grew until the pool was full.
    assert_eq!(records[&4].tokens.len(), 3);
}

#[test]
fn a_full_queue_rejects() {
    let mut run = Run::new(Profile {
        max_num_seqs: 1,
        max_queue: 1,
        ..profile()
    });
    (1..=3).for_each(|id| run.add(id, ask(1, 4, 1)));
    let records = run.finish();
    assert_eq!(records[&3].finishes, [Finish::Rejected]);
    assert_eq!(records[&2].finishes, [Finish::Length]);
}

#[test]
fn cancelling_frees_the_place_at_the_end_of_the_step() {
    let mut run = Run::new(Profile {
        max_num_seqs: 1,
        ..profile()
    });
    run.add(1, ask(1, 10, 100));
    run.add(2, ask(1, 10, 100));
    run.add(3, ask(500, 10, 1));
    assert!(run.step());
    run.batcher.cancel(2);
    run.batcher.schedule(run.now).unwrap();
    run.batcher.cancel(1);
    run.batcher.cancel(99);
    run.now += MS * 2;
    let step = run.batcher.apply();
    run.note(&step);
    let records = run.finish();
    assert_eq!(records[&1].finishes, [Finish::Cancelled]);
    assert_eq!(records[&1].tokens.len(), 1);
    assert_eq!(records[&2].finishes, [Finish::Cancelled]);
    assert_eq!(millis(&records[&3].times), [6.0]);
}

#[test]
fn answers_end_where_they_are_told_to() {
    let mut run = Run::new(profile());
    let plain = |max_tokens| {
        let mut ask = ask(1, 4, max_tokens);
        ask.request.ignore_eos = false;
        ask
    };
    let natural = Ask {
        natural: Some(5),
        ..plain(50)
    };
    let early = Ask {
        early_stop: Some(3),
        ..ask(1, 4, 50)
    };
    run.add(1, natural.clone());
    run.add(2, early);
    run.add(3, plain(7));
    run.add(
        4,
        Ask {
            natural: Some(50),
            ..plain(7)
        },
    );
    let mut stopped = plain(50);
    stopped.request.stop_token_ids = vec![0];
    stopped.request.ignore_eos = true;
    run.add(
        5,
        Ask {
            natural: Some(5),
            ..stopped
        },
    );
    let records = run.finish();
    let ends = |id: u64| (records[&id].tokens.len(), records[&id].finishes[0]);
    assert_eq!(ends(1), (5, Finish::Stop));
    assert_eq!(records[&1].tokens[4], 0);
    assert_eq!(ends(2), (3, Finish::Stop));
    assert_eq!(ends(3), (7, Finish::Length));
    assert_eq!(ends(4), (7, Finish::Length));
    assert_eq!(ends(5), (50, Finish::Length));
}
