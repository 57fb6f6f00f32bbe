//! Tests of the RAM tier's index: hit rates of access patterns, and the effects of single calls.

mod model;

use super::*;
use crate::eviction::Rule;
use crate::key::Group;

/// Salt group of a document: one in three has none.
pub(super) fn owner(document: u64) -> Group {
    [(document % 3) as u8, 0, 0, 0]
}

/// Block `at` of document `document`.
pub(super) fn block(document: u64, at: u64) -> Digest {
    let mut digest = *blake3::hash(format!("{document}/{at}").as_bytes()).as_bytes();
    digest[..4].copy_from_slice(&owner(document));
    digest
}

pub(super) fn chain(document: u64, length: u64) -> Vec<Digest> {
    (0..length).map(|at| block(document, at)).collect()
}

pub(super) fn index(slots: usize, quota: f64, pin_share: f64, rule: Rule) -> TierIndex {
    TierIndex::new(&IndexOptions {
        slots,
        quota,
        pin_share,
        rule,
    })
    .unwrap()
}

/// Serves one request: looks up `digests` and stores those that it does not find. Returns the
/// number of blocks found.
fn serve(index: &mut TierIndex, digests: &[Digest]) -> usize {
    let (mut found, mut answers) = (Vec::new(), Vec::new());
    index.lookup(digests, 0, &mut found);
    let rest = &digests[found.len()..];
    let parent = found.len().checked_sub(1).map(|last| digests[last]);
    index.admit(rest, parent.as_ref(), false, &mut answers);
    let admitted = rest
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| **answer >= 0);
    let admitted: Vec<Digest> = admitted.map(|(digest, _)| *digest).collect();
    index.commit(&admitted).unwrap();
    found.len()
}

/// Share of blocks found in `rounds` passes over the same `documents`, each in the same order.
fn loop_ratio(rule: Rule, slots: usize, documents: u64, blocks: u64, rounds: u64) -> f64 {
    let mut index = index(slots, 1.0, 0.5, rule);
    let hits: usize = (0..rounds * documents)
        .map(|turn| serve(&mut index, &chain(turn % documents, blocks)))
        .sum();
    index.check().unwrap();
    hits as f64 / (rounds * documents * blocks) as f64
}

#[test]
fn a_loop_over_twice_the_tier_keeps_most_of_what_fits() {
    assert_eq!(loop_ratio(Rule::Lru, 1000, 100, 20, 20), 0.0);
    let ratio = loop_ratio(Rule::Auto, 1000, 100, 20, 20);
    assert!(ratio >= 0.4, "{ratio}");
    // A tier with more slots than a shadow cache: its keys are sampled.
    let ratio = loop_ratio(Rule::Auto, 40_000, 200, 400, 20);
    assert!(ratio >= 0.4, "{ratio}");
    let ratio = loop_ratio(Rule::Auto, 1900, 100, 20, 20);
    assert!(ratio >= 0.8, "{ratio}");
}

#[test]
fn what_fits_is_kept_whole() {
    for rule in [Rule::Auto, Rule::Lru] {
        assert_eq!(loop_ratio(rule, 2000, 100, 20, 4), 0.75);
    }
}

/// A random document, with probability proportional to 1/rank: a few return often, most never.
fn popular(turn: u64, documents: u64) -> u64 {
    let word = crate::eviction::key::mix(turn);
    let share = (word >> 11) as f64 / (1_u64 << 53) as f64;
    (documents as f64).powf(share) as u64
}

#[test]
fn popular_documents_are_found_at_least_as_often_as_with_lru() {
    let ratio = |rule| {
        let mut index = index(400, 1.0, 0.5, rule);
        (0..6000)
            .map(|turn| serve(&mut index, &chain(popular(turn, 2000), 8)))
            .sum::<usize>() as f64
            / 48_000.0
    };
    let (auto, lru) = (ratio(Rule::Auto), ratio(Rule::Lru));
    assert!(auto > lru, "{auto} is not above {lru}");
}

#[test]
fn conversations_are_found_as_often_as_with_lru() {
    // 64 conversations take turns. Each turn is one block longer than the conversation's turn
    // before; after 20 turns it never returns, so all reuse is recent.
    let ratio = |rule| {
        let mut index = index(600, 1.0, 0.5, rule);
        let turns =
            (0..12_000_u64).map(|turn| (turn / 1280 * 64 + turn % 64, turn % 1280 / 64 + 1));
        turns
            .map(|(conversation, length)| serve(&mut index, &chain(conversation, length)))
            .sum::<usize>() as f64
    };
    let (auto, lru) = (ratio(Rule::Auto), ratio(Rule::Lru));
    assert!(auto >= 0.97 * lru, "{auto} is below {lru}");
}

#[test]
fn leaves_go_before_what_they_continue() {
    let mut index = index(10, 1.0, 0.5, Rule::Lru);
    serve(&mut index, &chain(1, 6));
    serve(&mut index, &chain(2, 7));
    assert_eq!(index.peek(&chain(1, 6)), 3);
    assert_eq!(index.peek(&chain(2, 7)), 7);
}

#[test]
fn blocks_admitted_piece_by_piece_leave_from_the_end() {
    let mut index = index(8, 1.0, 0.5, Rule::Lru);
    let digests = chain(1, 6);
    let mut answers = Vec::new();
    for at in 0..6 {
        let parent = usize::checked_sub(at, 1).map(|before| digests[before]);
        index.admit(&digests[at..=at], parent.as_ref(), false, &mut answers);
        index.commit(&digests[at..=at]).unwrap();
    }
    serve(&mut index, &chain(2, 4));
    assert_eq!(index.peek(&digests), 4);
    index.check().unwrap();
}

#[test]
fn what_continues_an_absent_block_is_a_root_until_that_comes() {
    let mut index = index(4, 1.0, 0.5, Rule::Lru);
    let digests = chain(1, 4);
    let (mut answers, mut found) = (Vec::new(), Vec::new());
    index.admit(&digests[2..], Some(&digests[1]), false, &mut answers);
    index.commit(&digests[2..]).unwrap();
    index.lookup(&digests, 2, &mut found);
    assert_eq!(found.len(), 2);
    index.admit(&digests, None, false, &mut answers);
    assert_eq!(answers[2..], [PRESENT, PRESENT]);
    index.commit(&digests[..2]).unwrap();
    serve(&mut index, &chain(2, 1));
    assert_eq!(index.peek(&digests), 3);
}

#[test]
fn what_is_pinned_before_it_comes_stays_when_it_came() {
    let mut index = index(6, 1.0, 0.5, Rule::Auto);
    assert_eq!(index.pin(&chain(1, 3)), Ok(0));
    let (wanted, most) = (4, 3);
    assert_eq!(
        index.pin(&chain(2, 1)),
        Err(IndexError::PinShare { wanted, most })
    );
    serve(&mut index, &chain(1, 5));
    for document in 2..40 {
        serve(&mut index, &chain(document, 3));
    }
    assert_eq!((index.peek(&chain(1, 5)), index.stats().pinned), (3, 3));
    assert_eq!(index.clear(None), 6);
    index.check().unwrap();
    assert_eq!(index.pin(&chain(2, 3)), Ok(0));
}

#[test]
fn a_chain_longer_than_the_tier_keeps_its_beginning() {
    let mut index = index(4, 1.0, 0.5, Rule::Lru);
    serve(&mut index, &chain(1, 9));
    assert_eq!(serve(&mut index, &chain(1, 9)), 4);
    assert_eq!(index.stats().refused, 10);
}

/// A loop over twice the tier's size activates the admission filter; awaited blocks, such as those
/// of a preempted sequence, are admitted all the same.
#[test]
fn what_is_awaited_passes_the_gate() {
    let mut index = index(64, 1.0, 0.5, Rule::Auto);
    for turn in 0..200_u64 {
        serve(&mut index, &chain(turn % 16, 8));
    }
    let (digests, mut answers) = (chain(99, 8), Vec::new());
    let admit = |index: &mut TierIndex, awaited, answers: &mut Vec<i64>| {
        index.admit(&digests, None, awaited, answers);
    };
    admit(&mut index, false, &mut answers);
    assert_eq!(answers, [REFUSED; 8]);
    admit(&mut index, true, &mut answers);
    assert!(answers.iter().all(|answer| *answer >= 0), "{answers:?}");
    index.commit(&digests).unwrap();
    assert_eq!(index.peek(&digests), 8);
    index.check().unwrap();
}

#[test]
fn options_out_of_range_are_refused() {
    let options = |slots, quota, pin_share| IndexOptions {
        slots,
        quota,
        pin_share,
        rule: Rule::Auto,
    };
    for wrong in [
        options(0, 1.0, 0.0),
        options(1, 0.0, 0.0),
        options(1, 1.5, 0.0),
        options(1, 1.0, f64::NAN),
    ] {
        assert!(matches!(
            TierIndex::new(&wrong),
            Err(IndexError::Option { .. })
        ));
    }
}
