//! Random operations on the RAM tier's index, compared with a model of plain dictionaries.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{block, chain, index, owner};
use crate::eviction::Rule;
use crate::eviction::index::*;
use crate::key::Group;

/// A random operation on the index.
#[derive(Clone, Debug)]
enum Act {
    Lookup(u64, u64, usize),
    Admit(u64, u64, u64),
    End(usize, bool),
    Hold(u64, u64),
    Release(usize),
    Pin(u64, u64),
    Unpin(u64, u64),
    Remove(u64, u64),
    Clear(Option<Group>),
}

fn acts() -> impl Strategy<Value = Act> {
    let (document, length) = (0_u64..7, 1_u64..9);
    prop_oneof![
        6 => (document.clone(), length.clone(), 0_usize..3)
            .prop_map(|(d, n, start)| Act::Lookup(d, n, start)),
        8 => (document.clone(), 0_u64..4, length.clone())
            .prop_map(|(d, from, n)| Act::Admit(d, from, n)),
        8 => (0_usize..8, any::<bool>()).prop_map(|(at, done)| Act::End(at, done)),
        2 => (document.clone(), length.clone()).prop_map(|(d, n)| Act::Hold(d, n)),
        2 => (0_usize..4).prop_map(Act::Release),
        1 => (document.clone(), length.clone()).prop_map(|(d, n)| Act::Pin(d, n)),
        2 => (document.clone(), length.clone()).prop_map(|(d, n)| Act::Unpin(d, n)),
        1 => (document.clone(), length).prop_map(|(d, n)| Act::Remove(d, n)),
        1 => proptest::option::of(document.prop_map(owner)).prop_map(Act::Clear),
    ]
}

/// The index's state as plain data: which digest has which slot, and what protects it.
#[derive(Default)]
struct Model {
    /// A digest's slot, and whether its store has ended.
    kept: BTreeMap<Digest, (u32, bool)>,
    storing: Vec<Vec<Digest>>,
    holds: Vec<Vec<u32>>,
    pinned: BTreeSet<Digest>,
    /// Slots of removed digests that a store or load in flight still uses.
    doomed: BTreeMap<Digest, u32>,
    /// Digests that a reader of `take_left` takes for present: committed, and not reported as left.
    told: BTreeSet<Digest>,
}

impl Model {
    fn run(&self, digests: &[Digest], start: usize) -> Vec<u32> {
        let stored = |digest: &Digest| {
            self.kept
                .get(digest)
                .filter(|kept| kept.1)
                .map(|kept| kept.0)
        };
        digests.iter().skip(start).map_while(stored).collect()
    }

    fn is_busy(&self, slot: u32, digest: &Digest) -> bool {
        self.holds.iter().flatten().any(|&held| held == slot)
            || self.storing.iter().flatten().any(|other| other == digest)
    }

    fn forget(&mut self, digest: &Digest) {
        self.pinned.remove(digest);
        if let Some((slot, ..)) = self.kept.remove(digest)
            && self.is_busy(slot, digest)
        {
            self.doomed.insert(*digest, slot);
        }
    }

    fn settle(&mut self) {
        let free: Vec<_> = self
            .doomed
            .iter()
            .filter(|&(digest, &slot)| !self.is_busy(slot, digest))
            .map(|(d, _)| *d)
            .collect();
        free.iter().for_each(|digest| {
            self.doomed.remove(digest);
        });
    }

    /// Removes from the model what the index has evicted; fails if it was being stored, held or
    /// pinned.
    fn follow_evictions(&mut self, index: &TierIndex) -> Result<(), TestCaseError> {
        let gone: Vec<_> = self
            .kept
            .iter()
            .filter(|(digest, kept)| index.policy.tree.find(digest) != Some(kept.0))
            .collect();
        for &(digest, &(slot, stored)) in &gone {
            prop_assert!(
                stored && !self.is_busy(slot, digest) && !self.pinned.contains(digest),
                "slot {slot} was evicted"
            );
        }
        let gone: Vec<Digest> = gone.into_iter().map(|(digest, _)| *digest).collect();
        gone.iter().for_each(|digest| {
            self.kept.remove(digest);
        });
        Ok(())
    }

    fn apply(&mut self, index: &mut TierIndex, act: Act) -> Result<(), TestCaseError> {
        let mut found = Vec::new();
        match act {
            Act::Lookup(document, length, start) => {
                let digests = chain(document, length);
                index.lookup(&digests, start, &mut found);
                prop_assert_eq!(found, self.run(&digests, start));
            }
            Act::Admit(document, from, length) => self.admit(index, document, from, length)?,
            Act::End(at, done) if at < self.storing.len() => {
                let digests = self.storing.remove(at);
                if done {
                    index.commit(&digests).unwrap();
                    self.told.extend(&digests);
                } else {
                    index.abandon(&digests).unwrap()
                }
                prop_assert!(digests.is_empty() || index.commit(&digests).is_err());
                for digest in &digests {
                    if done {
                        self.kept.entry(*digest).and_modify(|kept| kept.1 = true);
                    } else {
                        self.kept.remove(digest);
                    }
                }
            }
            Act::Hold(document, length) => {
                let digests = chain(document, length);
                index.lookup(&digests, 0, &mut found);
                index.hold(&found).unwrap();
                self.holds.push(found);
            }
            Act::Release(at) if at < self.holds.len() => {
                index.release(&self.holds.remove(at)).unwrap()
            }
            Act::Pin(document, length) => self.pin(index, &chain(document, length))?,
            Act::Unpin(document, length) => {
                index.unpin(&chain(document, length));
                chain(document, length).iter().for_each(|digest| {
                    self.pinned.remove(digest);
                });
            }
            Act::Remove(document, length) => {
                index.remove(&chain(document, length));
                chain(document, length)
                    .iter()
                    .for_each(|digest| self.forget(digest));
            }
            Act::Clear(group) => {
                index.clear(group);
                let wanted = |digest: &Digest| group.is_none_or(|group| digest.starts_with(&group));
                self.pinned.retain(|digest| !wanted(digest));
                let digests = self.kept.keys().filter(|digest| wanted(digest));
                let digests: Vec<Digest> = digests.copied().collect();
                digests.iter().for_each(|digest| self.forget(digest));
            }
            Act::End(..) | Act::Release(_) => {}
        }
        self.settle();
        for digest in index.take_left() {
            prop_assert!(self.told.remove(&digest), "was never told");
        }
        Ok(())
    }

    fn admit(
        &mut self,
        index: &mut TierIndex,
        document: u64,
        from: u64,
        length: u64,
    ) -> Result<(), TestCaseError> {
        let digests: Vec<_> = chain(document, from + length).split_off(from as usize);
        let parent = from.checked_sub(1).map(|before| block(document, before));
        let mut answers = Vec::new();
        let awaited = document % 5 == 4;
        index.admit(&digests, parent.as_ref(), awaited, &mut answers);
        self.follow_evictions(index)?;
        prop_assert!(
            answers
                .iter()
                .skip_while(|answer| **answer != REFUSED)
                .all(|answer| *answer == REFUSED)
        );
        for (digest, &answer) in digests.iter().zip(&answers) {
            match answer {
                PRESENT => prop_assert!(self.kept.contains_key(digest)),
                REFUSED => {}
                _ => {
                    let slot = answer as u32;
                    prop_assert!(
                        !self.kept.values().any(|kept| kept.0 == slot),
                        "slot {slot} is taken"
                    );
                    prop_assert!(
                        !self.doomed.values().any(|&other| other == slot),
                        "slot {slot} is busy"
                    );
                    prop_assert!(self.kept.insert(*digest, (slot, false)).is_none());
                }
            }
        }
        let stores = digests
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| **answer >= 0);
        self.storing
            .push(stores.map(|(digest, _)| *digest).collect());
        Ok(())
    }

    fn pin(&mut self, index: &mut TierIndex, digests: &[Digest]) -> Result<(), TestCaseError> {
        let here = digests
            .iter()
            .filter(|digest| self.kept.contains_key(*digest));
        let here = here.count();
        let wanted = self
            .pinned
            .iter()
            .chain(digests)
            .collect::<BTreeSet<_>>()
            .len();
        match index.pin(digests) {
            Ok(count) => {
                prop_assert_eq!(count, here);
                self.pinned.extend(digests);
                prop_assert!(wanted <= index.limits.pinned);
            }
            Err(error) => {
                let most = index.limits.pinned;
                prop_assert_eq!(error, IndexError::PinShare { wanted, most });
            }
        }
        Ok(())
    }

    fn compare(&self, index: &TierIndex) -> Result<(), TestCaseError> {
        prop_assert_eq!(index.check(), Ok(()));
        prop_assert_eq!(index.policy.tree.len(), self.kept.len() + self.doomed.len());
        for (digest, kept) in &self.kept {
            prop_assert_eq!(index.policy.tree.find(digest), Some(kept.0));
        }
        let stored = self.kept.iter().filter(|(_, kept)| kept.1);
        let stored: BTreeSet<Digest> = stored.map(|(digest, _)| *digest).collect();
        prop_assert_eq!(&self.told, &stored);
        let stats = index.stats();
        let pinned = self
            .pinned
            .iter()
            .filter(|digest| self.kept.contains_key(*digest));
        prop_assert_eq!(stats.pinned, pinned.count());
        for group in (1..3).map(owner) {
            let used = self.kept.keys().filter(|digest| digest.starts_with(&group));
            prop_assert!(used.count() <= index.limits.of_group);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn an_index_is_a_dictionary_that_forgets(
        acts in proptest::collection::vec(acts(), 1..120),
        slots in 1_usize..24,
        quota in prop_oneof![Just(1.0), 0.2_f64..0.9],
        rule in prop_oneof![Just(Rule::Auto), Just(Rule::Lru)],
    ) {
        let mut index = index(slots, quota, 0.4, rule);
        let mut model = Model::default();
        for act in acts {
            model.apply(&mut index, act)?;
            model.compare(&index)?;
        }
    }
}
