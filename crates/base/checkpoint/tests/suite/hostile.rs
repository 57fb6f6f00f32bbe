//! Randomly damaged files: for any bytes, opening gives an error or a checkpoint with readable
//! tensors, and never panics.

use crate::common::{Scratch, plain_gguf, safetensors, tiny};
use penstock_checkpoint::{Checkpoint, FormatError, GgufHeader, ReadAhead, ReadCount};
use proptest::prelude::*;

/// A change of some bytes in a file.
#[derive(Clone, Debug)]
enum Damage {
    Truncate(prop::sample::Index),
    Set(prop::sample::Index, u8),
    /// Eight bytes, the size of counts, lengths and offsets.
    SetWord(prop::sample::Index, u64),
    Remove(prop::sample::Index),
    Insert(prop::sample::Index, u8),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    let word = prop_oneof![
        any::<u64>(),
        0..64u64,
        (0..64u32).prop_map(|bit| 1 << bit),
        Just(u64::MAX),
        Just(u64::MAX - 31)
    ];
    prop_oneof![
        at().prop_map(Damage::Truncate),
        (at(), any::<u8>()).prop_map(|(i, byte)| Damage::Set(i, byte)),
        (at(), word).prop_map(|(i, word)| Damage::SetWord(i, word)),
        at().prop_map(Damage::Remove),
        (at(), any::<u8>()).prop_map(|(i, byte)| Damage::Insert(i, byte)),
    ]
}

fn apply(file: &mut Vec<u8>, damage: &Damage) {
    if file.is_empty() {
        return;
    }
    match damage {
        Damage::Truncate(at) => file.truncate(at.index(file.len())),
        Damage::Set(at, byte) => {
            let i = at.index(file.len());
            file[i] = *byte;
        }
        Damage::SetWord(at, word) => {
            let start = at.index(file.len());
            for (slot, byte) in file[start..].iter_mut().zip(word.to_le_bytes()) {
                *slot = byte;
            }
        }
        Damage::Remove(at) => drop(file.remove(at.index(file.len()))),
        Damage::Insert(at, byte) => file.insert(at.index(file.len()), *byte),
    }
}

fn damaged(original: &[u8], changes: &[Damage]) -> Vec<u8> {
    let mut file = original.to_vec();
    for change in changes {
        apply(&mut file, change);
    }
    file
}

fn read_everything(checkpoint: &Checkpoint) {
    for name in checkpoint.names() {
        if let Ok(tensor) = checkpoint.tensor(name) {
            let mut row = vec![0.0; tensor.cols()];
            (0..tensor.rows())
                .take(4)
                .for_each(|i| tensor.dequantize_row(i, &mut row));
        }
    }
    checkpoint.fingerprint().unwrap();
    let count = ReadCount::default();
    let mut ahead = ReadAhead::new(checkpoint, &count);
    for (i, name) in checkpoint.names().enumerate() {
        ahead.add(name, (i % 3 > 0).then_some(i));
    }
    let read = ahead.run(1, || {
        checkpoint
            .names()
            .try_for_each(|name| match ahead.tensor(name) {
                Err(FormatError::Unreadable(problem)) => Err(std::io::Error::other(problem)),
                _ => Ok(()),
            })?;
        ahead.release();
        Ok::<_, std::io::Error>(())
    });
    read.unwrap();
}

fn check_gguf(bytes: &[u8]) {
    if let Ok(header) = GgufHeader::parse(bytes) {
        for tensor in &header.tensors {
            let elements: usize = tensor.shape.iter().product();
            assert_eq!(
                bytes[tensor.range.clone()].len(),
                tensor.dtype.bytes_for(elements).unwrap()
            );
        }
    }
}

const HEADER: &str = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b.c":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]}}"#;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn small_gguf(changes in prop::collection::vec(damage(), 1..4)) {
        check_gguf(&damaged(&plain_gguf().build(), &changes));
    }

    #[test]
    fn random_bytes_after_a_gguf_magic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_gguf(&[b"GGUF\x03\0\0\0", &bytes[..]].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn real_gguf_header(changes in prop::collection::vec(damage(), 1..4)) {
        let original = std::fs::read(tiny("llama3.gguf")).unwrap();
        // Only the first 2 KiB are header: damage to the data is not an error.
        let (header, data) = original.split_at(2048);
        check_gguf(&[&damaged(header, &changes)[..], data].concat());
    }

    #[test]
    fn safetensors_file(changes in prop::collection::vec(damage(), 1..4)) {
        let scratch = Scratch::new("hostile-file");
        let path =
            scratch.write("model.safetensors", damaged(&safetensors(HEADER, &[7; 16]), &changes));
        if let Ok(checkpoint) = Checkpoint::open(&path) {
            read_everything(&checkpoint);
        }
    }

    #[test]
    fn shard_index(changes in prop::collection::vec(damage(), 1..4)) {
        let scratch = Scratch::new("hostile-index");
        scratch.write("1.safetensors", safetensors(HEADER, &[7; 16]));
        let index = r#"{"weight_map":{"a":"1.safetensors","b.c":"1.safetensors"}}"#;
        scratch.write("model.safetensors.index.json", damaged(index.as_bytes(), &changes));
        if let Ok(checkpoint) = Checkpoint::open(scratch.path()) {
            read_everything(&checkpoint);
        }
    }
}
