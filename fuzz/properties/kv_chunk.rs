//! Files of KV parts: a hit is the part that was asked for, with the bytes of the file; everything
//! else is damaged, in `penstock kv verify` too.
//!
//! The input is a flag byte, changes of the header's fields in a whole file, and the payload. The
//! flags complete the checksums, which a fuzzer does not find.

use std::fs;
use std::path::PathBuf;

use crate::common::Scratch;
use penstock_kvstore::disk::{Disk, DiskOptions, PAYLOAD_AT, admin};
use penstock_kvstore::{Checksum, PartKey, StoreIdentity, Tier, TierError};

/// The file is the input as it is.
const RAW: u8 = 1;
/// The payload's checksum is right.
const SUMMED: u8 = 2;
/// The header's checksum is right.
const SEALED: u8 = 4;

const FIELDS: usize = 136;
const SUM_AT: usize = 96;
const SEAL_AT: usize = PAYLOAD_AT - 8;
const FILE_BYTES: usize = 2 * PAYLOAD_AT;
const KEY: PartKey = PartKey {
    digest: [7; 32],
    blocks: 2,
    head: 1,
    layers: (0, 2),
};

/// A tier with one part, and the part's file.
struct Store {
    disk: Disk,
    file: PathBuf,
    written: Vec<u8>,
    scratch: Scratch,
}

fn store() -> Store {
    let scratch = Scratch::new("kv");
    let identity = StoreIdentity {
        cache: "ab".repeat(32),
        layers: 2,
        kv_heads: 2,
        block_tokens: 16,
        tile_bytes: 64,
        dtype: "bf16".into(),
    };
    let options = DiskOptions {
        path: scratch.0.clone(),
        limit_bytes: 1 << 30,
        daily_write_bytes: None,
        chunk_blocks: 2,
        quota: None,
    };
    let disk = Disk::open(options, identity).expect("the temporary directory is writable");
    disk.store(&KEY, &[0; PAYLOAD_BYTES], None)
        .expect("there is room");
    let report = admin::inventory(&scratch.0).expect("a store");
    let folder = scratch.0.join("penstock-kv-1");
    let folder = folder.join(&report.stores[0].name).join("07");
    let file = folder.join(format!("{}-2.h1.l0-2", "07".repeat(32)));
    let written = fs::read(&file).expect("the part's file is named by its digest");
    assert_eq!(written.len(), FILE_BYTES);
    Store {
        disk,
        file,
        written,
        scratch,
    }
}

thread_local!(static STORE: Store = store());

const PAYLOAD_BYTES: usize = 2 * 2 * 64;

fn checksum(bytes: &[u8]) -> [u8; 8] {
    let mut sum = Checksum::new();
    sum.update(bytes);
    sum.value().to_le_bytes()
}

fn file_of(written: &[u8], flags: u8, input: &[u8]) -> Vec<u8> {
    if flags & RAW != 0 {
        return input.to_vec();
    }
    let (changes, payload) = input.split_at(input.len().min(FIELDS));
    let mut file = written.to_vec();
    for (byte, change) in file.iter_mut().zip(changes) {
        *byte ^= change;
    }
    file.resize(FILE_BYTES.max(PAYLOAD_AT + payload.len()), 0);
    file[PAYLOAD_AT..][..payload.len()].copy_from_slice(payload);
    let payload = PAYLOAD_AT..PAYLOAD_AT + PAYLOAD_BYTES;
    for (flag, bytes, at) in [(SUMMED, payload, SUM_AT), (SEALED, 0..SEAL_AT, SEAL_AT)] {
        if flags & flag != 0 {
            let sum = checksum(&file[bytes]);
            file[at..][..8].copy_from_slice(&sum);
        }
    }
    file
}

pub fn check(input: &[u8]) {
    if let [flags, input @ ..] = input {
        STORE.with(|store| check_file(store, &file_of(&store.written, *flags, input)));
    }
}

fn check_file(store: &Store, file: &[u8]) {
    fs::write(&store.file, file).expect("the temporary directory has room");
    let verified = admin::verify(&store.scratch.0, false, &mut |_| true).expect("a store");
    let mut payload = [0; PAYLOAD_BYTES];
    let (first, second) = payload.split_at_mut(PAYLOAD_BYTES / 2);
    let loaded = store.disk.load(&KEY, &mut [first, second]);
    store.disk.take_left(usize::MAX);
    match loaded {
        Ok(()) => {
            assert_eq!(file.len(), FILE_BYTES);
            assert_eq!(payload, file[PAYLOAD_AT..][..PAYLOAD_BYTES]);
            assert_eq!(file[SUM_AT..][..8], checksum(&payload));
            assert_eq!(file[SEAL_AT..PAYLOAD_AT], checksum(&file[..SEAL_AT]));
            assert_eq!(file[48..80], KEY.digest);
            assert_eq!(file[80..88], [2, 0, 1, 0, 0, 0, 2, 0]);
            assert!(verified.damaged.is_empty(), "{verified:?}");
        }
        Err(TierError::Damaged(_)) => assert!(!store.file.exists()),
        Err(error) => panic!("{error}"),
    }
}
