//! The rule against golden vectors made by an independent program, and its algebra on random input.
#![allow(clippy::unwrap_used)]

use penstock_prefix::{Digest, GROUP_BYTES, UNIT, chain, group, root};
use proptest::prelude::*;
use serde_json::Value;

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn digest(value: &Value) -> Digest {
    unhex(value.as_str().unwrap()).try_into().unwrap()
}

fn golden() -> Value {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../tests/golden/prefix/chain.json"
    );
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn chains_match_the_golden_vectors() {
    let cases = golden()["chains"].as_array().unwrap().clone();
    assert!(cases.len() >= 5);
    for case in cases {
        let tokens: Vec<u32> = case["tokens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| u32::try_from(t.as_u64().unwrap()).unwrap())
            .collect();
        let parent = (!case["parent"].is_null()).then(|| digest(&case["parent"]));
        let expected: Vec<Digest> = case["digests"]
            .as_array()
            .unwrap()
            .iter()
            .map(digest)
            .collect();
        assert_eq!(
            chain(&digest(&case["identity"]), parent.as_ref(), &tokens),
            expected,
            "{}",
            case["name"]
        );
    }
}

#[test]
fn roots_match_the_golden_vectors() {
    for case in golden()["roots"].as_array().unwrap() {
        let (adapter, salt) = (
            unhex(case["adapter"].as_str().unwrap()),
            unhex(case["salt"].as_str().unwrap()),
        );
        assert_eq!(
            root(&digest(&case["identity"]), &adapter, &salt),
            digest(&case["root"]),
            "{}",
            case["name"]
        );
    }
}

proptest! {
    #[test]
    fn pieces_give_the_chain_of_the_whole(
        tokens in prop::collection::vec(any::<u32>(), 0..200), cut in 0usize..12,
    ) {
        let identity = [7; 32];
        let cut = (cut * UNIT).min(tokens.len() / UNIT * UNIT);
        let mut pieces = chain(&identity, None, &tokens[..cut]);
        let parent = pieces.last().copied();
        pieces.extend(chain(&identity, parent.as_ref(), &tokens[cut..]));
        prop_assert_eq!(pieces, chain(&identity, None, &tokens));
    }

    #[test]
    fn a_changed_token_changes_its_unit_and_all_after_and_none_before(
        tokens in prop::collection::vec(any::<u32>(), 16..160),
        at in any::<prop::sample::Index>(), flip in 1u32..
    ) {
        let identity = [3; 32];
        let full = tokens.len() / UNIT * UNIT;
        let at = at.index(full);
        let mut changed = tokens.clone();
        changed[at] ^= flip;
        let (before, after) = (chain(&identity, None, &tokens), chain(&identity, None, &changed));
        for (unit, (a, b)) in before.iter().zip(&after).enumerate() {
            prop_assert_eq!(a == b, unit < at / UNIT);
        }
    }

    #[test]
    fn every_digest_of_a_chain_is_in_the_group_of_its_root(
        tokens in prop::collection::vec(any::<u32>(), 16..100),
        salt in "[a-z]{0,8}", other in "[A-Z]{1,8}"
    ) {
        let identity = [5; 32];
        let first = root(&identity, b"", salt.as_bytes());
        let digests = chain(&identity, Some(&first), &tokens);
        prop_assert!(digests.iter().all(|digest| group(digest) == group(&first)));
        // Another root in the same group shares nothing with it.
        let mut second = root(&identity, b"", other.as_bytes());
        second[..GROUP_BYTES].copy_from_slice(&group(&first));
        let others = chain(&identity, Some(&second), &tokens);
        prop_assert!(digests.iter().zip(&others).all(|(a, b)| group(a) == group(b) && a != b));
    }

    #[test]
    fn adapter_and_salt_do_not_run_into_each_other(adapter in "[a-z]{1,8}", salt in "[a-z]{1,8}") {
        let identity = [1; 32];
        let joined = format!("{adapter}{salt}");
        let whole = root(&identity, adapter.as_bytes(), salt.as_bytes());
        prop_assert_ne!(whole, root(&identity, joined.as_bytes(), b""));
        prop_assert_ne!(whole, root(&identity, b"", joined.as_bytes()));
    }
}
