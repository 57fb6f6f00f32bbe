//! Stores of small parts in directories of their own, and the format written a second time, by the
//! book.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use penstock_kvstore::disk::{Disk, DiskOptions};
use penstock_kvstore::{Digest, PartKey, StoreIdentity, Tier, TierError};

/// A directory that goes with the test.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("penstock-disk-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// `penstock-kv-1` below it.
    pub(crate) fn root(&self) -> PathBuf {
        self.0.join("penstock-kv-1")
    }

    /// The file of a part, by the documented names.
    pub(crate) fn file(&self, identity: &StoreIdentity, key: &PartKey) -> PathBuf {
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        let (first, last) = key.layers;
        let name = format!(
            "{}-{}.h{}.l{first}-{last}",
            hex(&key.digest),
            key.blocks,
            key.head
        );
        let store = hex(&identity.digest()[..16]);
        self.root()
            .join(store)
            .join(hex(&key.digest[4..5]))
            .join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn identity() -> StoreIdentity {
    StoreIdentity {
        cache: "ab".repeat(32),
        layers: 4,
        kv_heads: 3,
        block_tokens: 16,
        tile_bytes: 2048,
        dtype: "bf16".into(),
    }
}

pub(crate) fn options(place: &Path) -> DiskOptions {
    DiskOptions {
        path: place.to_path_buf(),
        limit_bytes: 1 << 30,
        daily_write_bytes: None,
        chunk_blocks: 2,
        quota: None,
    }
}

pub(crate) fn open(place: &Place) -> Disk {
    Disk::open(options(place.path()), identity()).unwrap()
}

pub(crate) fn open_limited(path: &Path, limit_bytes: u64) -> Disk {
    let options = DiskOptions {
        limit_bytes,
        ..options(path)
    };
    Disk::open(options, identity()).unwrap()
}

/// A part of chunk `number`: 16 KiB of payload in two blocks.
pub(crate) fn key(number: u64, head: u16) -> PartKey {
    let digest = *blake3::hash(&number.to_le_bytes()).as_bytes();
    PartKey {
        digest,
        blocks: 2,
        head,
        layers: (0, 4),
    }
}

/// Bytes of the file of such a part.
pub(crate) const FILE_BYTES: u64 = 4096 + 16384;

/// What belongs into a part: nothing else hashes to it.
pub(crate) fn payload(key: &PartKey, identity: &StoreIdentity) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{key:?}").as_bytes());
    let mut bytes = vec![0; key.payload_bytes(identity)];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

pub(crate) fn store(disk: &Disk, key: &PartKey) -> Result<(), TierError> {
    store_after(disk, key, None)
}

pub(crate) fn store_after(
    disk: &Disk,
    key: &PartKey,
    parent: Option<Digest>,
) -> Result<(), TierError> {
    let bytes = payload(key, &identity());
    disk.store(key, &bytes, parent)
}

/// Loads a part and checks that a hit has the right bytes.
pub(crate) fn load(disk: &Disk, key: &PartKey) -> Result<(), TierError> {
    let identity = identity();
    let mut bytes = vec![0; key.payload_bytes(&identity)];
    let block = key.extent_bytes(&identity);
    let answer = disk.load(key, &mut bytes.chunks_mut(block).collect::<Vec<_>>());
    if answer.is_ok() {
        assert!(
            bytes == payload(key, &identity),
            "a hit with wrong bytes: {key:?}"
        );
    }
    answer
}

pub(crate) fn counter(disk: &Disk, name: &str) -> u64 {
    disk.counters()
        .into_iter()
        .find(|(known, _)| *known == name)
        .unwrap()
        .1
}

/// Bytes that regular files take, as `du` counts them.
pub(crate) fn disk_usage(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(path) else {
        return 0;
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(facts) if facts.is_dir() => disk_usage(&entry.path()),
            Ok(facts) if !facts.is_file() => 0,
            Ok(facts) => facts.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// This program again, as the ignored test `name`, with a place to work in.
pub(crate) fn child(name: &str, place: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env("PENSTOCK_TEST_DISK", place)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// The place that the parent gave; None when somebody runs ignored tests by hand.
pub(crate) fn place_of_child() -> Option<PathBuf> {
    std::env::var_os("PENSTOCK_TEST_DISK").map(PathBuf::from)
}

/// CRC-64/NVME bit by bit (Rocksoft parameters, reflected).
pub(crate) fn slow_crc(bytes: &[u8]) -> u64 {
    let mut crc = u64::MAX;
    for &byte in bytes {
        crc ^= u64::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x9a6c_9329_ac4b_c9b5
            } else {
                crc >> 1
            };
        }
    }
    !crc
}
