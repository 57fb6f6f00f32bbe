//! The toy tier of docs/adding-a-tier.md: parts in a map.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use penstock_kvstore::{Checksum, Digest, Group, PartKey, Tier, TierError};

use crate::model::assert_like_a_dictionary;
use crate::parts::{identity, key, load, payload, store};

#[derive(Default)]
struct Toy(Mutex<BTreeMap<PartKey, (u64, Vec<u8>)>>);

impl Toy {
    fn parts(&self) -> MutexGuard<'_, BTreeMap<PartKey, (u64, Vec<u8>)>> {
        self.0.lock().unwrap()
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let mut sum = Checksum::new();
    sum.update(bytes);
    sum.value()
}

impl Tier for Toy {
    fn name(&self) -> &str {
        "toy"
    }

    fn load(&self, key: &PartKey, into: &mut [&mut [u8]]) -> Result<(), TierError> {
        let parts = self.parts();
        let (expected, bytes) = parts.get(key).ok_or(TierError::Missing)?;
        if sum(bytes) != *expected {
            return Err(TierError::Damaged("the payload's checksum is wrong".into()));
        }
        let mut rest = &bytes[..];
        for slice in into {
            let (now, later) = rest.split_at(slice.len());
            slice.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    fn store(&self, key: &PartKey, from: &[u8], _parent: Option<Digest>) -> Result<(), TierError> {
        let bytes = from.to_vec();
        let mut parts = self.parts();
        parts.entry(*key).or_insert_with(|| (sum(&bytes), bytes));
        Ok(())
    }

    fn probe(&self, keys: &[PartKey]) -> Result<Vec<bool>, TierError> {
        let parts = self.parts();
        Ok(keys.iter().map(|key| parts.contains_key(key)).collect())
    }

    fn remove(&self, digest: &Digest) -> Result<(), TierError> {
        self.parts().retain(|key, _| key.digest != *digest);
        Ok(())
    }

    fn clear(&self, group: Option<Group>) -> Result<(), TierError> {
        let named = |digest: &Digest| group.is_none_or(|group| digest.starts_with(&group));
        self.parts().retain(|key, _| !named(&key.digest));
        Ok(())
    }
}

#[test]
fn does_what_a_dictionary_does() {
    assert_like_a_dictionary(48, |_| Toy::default());
}

#[test]
fn damage_is_noticed() {
    let (toy, key) = (Toy::default(), key(7, 1));
    let bytes = payload(1, 3, identity("").tile_bytes);
    store(&toy, &key, &bytes).unwrap();
    toy.parts().get_mut(&key).unwrap().1[9] ^= 1;
    let loaded = load(&toy, &key, &bytes);
    assert!(matches!(loaded, Err(TierError::Damaged(_))));
}
