//! A tier does what a dictionary does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use penstock_kvstore::{Digest, Group, PartKey, StoreIdentity, Tier, TierError};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::parts::{identity, load, payload, store};

#[derive(Clone, Debug)]
enum Action {
    Store(PartKey, u64),
    Load(PartKey),
    Remove(u8),
    Clear(Option<Group>),
    Probe,
}

/// The first two chunks are of one group, the third is of another.
fn digest(chunk: u8) -> Digest {
    let mut digest = [chunk; 32];
    digest[..4].copy_from_slice(&[chunk / 2; 4]);
    digest
}

fn keys() -> Vec<PartKey> {
    let mut keys = Vec::new();
    for chunk in 0..3 {
        for (head, blocks, layers) in [
            (0, 2, (0, 4)),
            (1, 2, (0, 4)),
            (0, 2, (0, 2)),
            (0, 1, (0, 4)),
        ] {
            keys.push(PartKey {
                digest: digest(chunk),
                blocks,
                head,
                layers,
            });
        }
    }
    keys
}

fn bytes_of(key: &PartKey, seed: u64) -> Vec<Vec<u8>> {
    let identity = identity("");
    payload(seed, usize::from(key.blocks), key.extent_bytes(&identity))
}

fn action() -> impl Strategy<Value = Action> {
    let key = || proptest::sample::select(keys());
    prop_oneof![
        4 => (key(), 1..1000_u64).prop_map(|(key, seed)| Action::Store(key, seed)),
        4 => key().prop_map(Action::Load),
        1 => (0..3_u8).prop_map(Action::Remove),
        1 => proptest::option::of((0..2_u8).prop_map(|group| [group; 4])).prop_map(Action::Clear),
        2 => Just(Action::Probe),
    ]
}

/// Random actions on an empty tier from `open`, which keeps identities apart, and on a dictionary.
pub(crate) fn assert_like_a_dictionary<T: Tier>(cases: u32, open: impl Fn(&StoreIdentity) -> T) {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    });
    let actions = proptest::collection::vec(action(), 1..40);
    let done = runner.run(&actions, |actions| {
        let name = format!("model {}", COUNT.fetch_add(1, Ordering::Relaxed));
        let tier = open(&identity(&name));
        let mut model = HashMap::new();
        actions
            .into_iter()
            .for_each(|action| act(&tier, &mut model, action));
        Ok(())
    });
    done.unwrap();
}

fn act(tier: &dyn Tier, model: &mut HashMap<PartKey, u64>, action: Action) {
    match action {
        Action::Store(key, seed) => {
            store(tier, &key, &bytes_of(&key, seed)).unwrap();
            model.entry(key).or_insert(seed);
        }
        Action::Load(key) => match model.get(&key) {
            Some(&seed) => assert_eq!(
                load(tier, &key, &bytes_of(&key, 0)).unwrap(),
                bytes_of(&key, seed)
            ),
            None => assert!(matches!(
                load(tier, &key, &bytes_of(&key, 0)),
                Err(TierError::Missing)
            )),
        },
        Action::Remove(chunk) => {
            tier.remove(&digest(chunk)).unwrap();
            model.retain(|key, _| key.digest != digest(chunk));
        }
        Action::Clear(group) => {
            tier.clear(group).unwrap();
            model.retain(|key, _| group.is_some_and(|group| !key.digest.starts_with(&group)));
        }
        Action::Probe => {
            let there: Vec<bool> = keys().iter().map(|key| model.contains_key(key)).collect();
            assert_eq!(tier.probe(&keys()).unwrap(), there);
        }
    }
}
