//! Transfers and their results: round trips, sizes, and damaged bytes.
use penstock_wire::{Fault, Transfer, TransferKind, TransferResult, transfer_bytes};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn transfers() -> impl Strategy<Value = Transfer> {
    let kind = (1..=6u8).prop_map(|code| TransferKind::from_code(code).unwrap());
    let ints = || vec(any::<i32>(), 0..9);
    let names = (vec(any::<[u8; 32]>(), 0..4), option::of(any::<[u8; 32]>()));
    (
        (any::<u64>(), kind, 0..=255usize),
        (ints(), ints(), ints(), vec(any::<u64>(), 0..9)),
        (names, option::of(any::<[u8; 4]>())),
    )
        .prop_map(
            |((id, kind, tier), columns, ((keys, parent), group))| Transfer {
                id,
                kind,
                tier,
                blocks: columns.0,
                slots: columns.1,
                keys,
                counts: columns.2,
                ids: columns.3,
                parent,
                group,
            },
        )
}

fn results() -> impl Strategy<Value = Vec<TransferResult>> {
    let one = (
        any::<(u64, bool, u64)>(),
        (0..=3u8).prop_map(|code| Fault::from_code(code).unwrap()),
        vec(any::<u8>(), 0..40),
        (0.0..1e9f64, 0.0..1e9f64),
        ".{0,40}",
        vec(any::<[u8; 32]>(), 0..4),
    );
    let one =
        one.prop_map(
            |((id, done, bytes), fault, found, times, error, left)| TransferResult {
                id,
                done,
                found,
                bytes,
                seconds: times.0,
                waited: times.1,
                error,
                fault,
                left,
            },
        );
    vec(one, 0..8)
}

fn encoded(transfer: &Transfer) -> Vec<u8> {
    let mut bytes = Vec::new();
    transfer.encode(7, &mut bytes).unwrap();
    bytes
}

proptest! {
    #[test]
    fn a_transfer_survives_its_bytes(transfer in transfers()) {
        let bytes = encoded(&transfer);
        prop_assert_eq!(Transfer::decode(&bytes), Ok((transfer, 7)));
    }

    #[test]
    fn results_survive_however_many_messages_it_takes(
        results in results(),
        capacity in 1..400usize,
    ) {
        let messages = TransferResult::encode_all(&results, capacity).unwrap();
        let mut read = Vec::new();
        for message in messages {
            let some = TransferResult::decode_all(&message).unwrap();
            prop_assert!(message.len() <= capacity || some.len() == 1);
            read.extend(some);
        }
        prop_assert_eq!(read, results);
    }

    #[test]
    fn damaged_bytes_are_an_error_or_a_message(
        transfer in transfers(),
        results in results(),
        cut in any::<usize>(),
        flip in 1..=255u8,
    ) {
        let mut bytes = encoded(&transfer);
        let at = cut % bytes.len();
        prop_assert!(Transfer::decode(&bytes[..at]).is_err());
        bytes[at] ^= flip;
        let _ = Transfer::decode(&bytes);
        for mut bytes in TransferResult::encode_all(&results, 1 << 16).unwrap() {
            let at = cut % bytes.len();
            let _ = TransferResult::decode_all(&bytes[..at]);
            bytes[at] ^= flip;
            let _ = TransferResult::decode_all(&bytes);
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_a_message(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Transfer::decode(&bytes);
        let _ = TransferResult::decode_all(&bytes);
    }

    /// A store or load lists every block of one chunk, a probe at most one chunk per block.
    #[test]
    fn the_largest_transfers_fit_their_room(blocks in 1..100usize) {
        let none = Transfer {
            id: 1,
            kind: TransferKind::Load,
            tier: 0,
            blocks: Vec::new(),
            slots: Vec::new(),
            keys: Vec::new(),
            counts: Vec::new(),
            ids: Vec::new(),
            parent: None,
            group: None,
        };
        let ones = vec![1; blocks];
        for largest in [
            Transfer { blocks: ones.clone(), slots: ones.clone(), ..none.clone() },
            Transfer {
                blocks: ones.clone(),
                keys: vec![[0; 32]],
                parent: Some([0; 32]),
                ..none.clone()
            },
            Transfer { keys: vec![[0; 32]; blocks], counts: ones, ..none.clone() },
            Transfer { ids: vec![1; blocks], ..none },
        ] {
            prop_assert!(encoded(&largest).len() <= transfer_bytes(blocks));
        }
    }
}

#[test]
fn a_long_error_is_cut_between_characters() {
    let long = TransferResult::refused(1, "\u{2603}".repeat(9999));
    let messages = TransferResult::encode_all(&[long], 1 << 16).unwrap();
    let results = TransferResult::decode_all(&messages[0]).unwrap();
    assert_eq!(results[0].error, "\u{2603}".repeat(341));
}

#[test]
fn a_tier_that_has_no_byte_is_an_error() {
    let mut transfer = Transfer::decode(&{
        let mut bytes = vec![0; 39];
        bytes[16] = 1;
        bytes
    });
    let (transfer, _) = transfer.as_mut().unwrap();
    transfer.tier = 256;
    let error = transfer.encode(0, &mut Vec::new()).unwrap_err();
    assert_eq!((error.field, error.offset), ("tier", 17));
}
