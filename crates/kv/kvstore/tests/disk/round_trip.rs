use std::fs::File;

use penstock_kvstore::disk::Disk;
use penstock_kvstore::{PartKey, StoreIdentity, Tier, TierError};
use proptest::prelude::*;

use crate::fixtures::{
    Place, counter, identity, key, load, open, options, payload, slow_crc, store, store_after,
};

/// Bytes at an address that is `shift` past a page.
struct Memory {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize, shift: usize) -> Self {
        let bytes = vec![0x55; len + 8192];
        let begin = bytes.as_ptr().align_offset(4096) + shift;
        Self { bytes, begin, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.len]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Any geometry, any alignment, every way of reading and writing: what comes back is what went
    /// in.
    #[test]
    fn any_geometry(
        (layers, first) in (1_usize..6).prop_flat_map(|layers| (Just(layers), 0..layers)),
        kv_heads in 1_usize..4,
        tile_bytes in prop_oneof![1_usize..5000, Just(4096), Just(512), Just(200_000)],
        blocks in 1_u16..9,
        shift in prop_oneof![Just(0_usize), Just(512), 1_usize..100],
        digest: [u8; 32],
    ) {
        let place = Place::new();
        let identity = StoreIdentity { layers, kv_heads, tile_bytes, ..identity() };
        let options = options(place.path());
        let disk = Disk::open(options.clone(), identity.clone()).unwrap();
        let head = kv_heads as u16 - 1;
        let key = PartKey { digest, blocks, head, layers: (first as u16, layers as u16) };
        let extent = key.extent_bytes(&identity);
        let mut from = Memory::new(key.payload_bytes(&identity), shift);
        let wanted = payload(&key, &identity);
        from.get().copy_from_slice(&wanted);
        disk.store(&key, from.get(), None).unwrap();
        // The writer, and another that opens the directory later.
        for disk in [disk, Disk::open(options, identity.clone()).unwrap()] {
            let mut into = Memory::new(wanted.len(), shift);
            disk.load(&key, &mut into.get().chunks_mut(extent).collect::<Vec<_>>()).unwrap();
            prop_assert!(into.get() == wanted.as_slice());
            prop_assert_eq!(disk.probe(&[key]).unwrap(), [true]);
        }
    }
}

#[test]
fn the_file_is_as_documented() {
    let place = Place::new();
    let disk = open(&place);
    let (key, identity) = (key(1, 2), identity());
    store_after(&disk, &key, Some([0x5a; 32])).unwrap();
    let file = std::fs::read(place.file(&identity, &key)).unwrap();
    let payload = payload(&key, &identity);
    assert_eq!(file.len(), 4096 + payload.len().next_multiple_of(4096));
    assert_eq!(file[..16], *b"PENSTKV\n\x01\0\0\0\0\x10\0\0");
    assert_eq!(file[16..48], identity.digest());
    assert_eq!(file[48..80], key.digest);
    assert_eq!(file[80..88], [2, 0, 2, 0, 0, 0, 4, 0]);
    assert_eq!(file[88..96], (payload.len() as u64).to_le_bytes());
    assert_eq!(file[96..104], slow_crc(&payload).to_le_bytes());
    assert_eq!(file[104..136], [0x5a; 32]);
    assert!(file[136..4088].iter().all(|&byte| byte == 0));
    assert_eq!(file[4088..4096], slow_crc(&file[..4088]).to_le_bytes());
    assert_eq!(file[4096..4096 + payload.len()], payload);
}

#[test]
fn parts_of_one_chunk_are_apart() {
    let place = Place::new();
    let disk = open(&place);
    store(&disk, &key(1, 0)).unwrap();
    assert_eq!(
        disk.probe(&[key(1, 0), key(1, 1), key(2, 0)]).unwrap(),
        [true, false, false]
    );
    assert!(matches!(load(&disk, &key(1, 1)), Err(TierError::Missing)));
    store(&disk, &key(1, 1)).unwrap();
    disk.remove(&key(1, 0).digest).unwrap();
    disk.remove(&key(1, 0).digest).unwrap();
    assert_eq!(disk.probe(&[key(1, 0), key(1, 1)]).unwrap(), [false, false]);
    assert!(matches!(load(&disk, &key(1, 1)), Err(TierError::Missing)));
    assert_eq!(counter(&disk, "used_bytes"), 0);
}

#[test]
fn a_part_that_is_there_is_left_as_it_is() {
    let place = Place::new();
    let disk = open(&place);
    store(&disk, &key(1, 0)).unwrap();
    let file = place.file(&identity(), &key(1, 0));
    let inode = |path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
    let before = inode(&file);
    store(&disk, &key(1, 0)).unwrap();
    assert_eq!(inode(&file), before);
    // What has another length is no such part.
    std::fs::write(&file, b"torn").unwrap();
    store(&disk, &key(1, 0)).unwrap();
    load(&disk, &key(1, 0)).unwrap();
}

#[test]
fn another_identity_shares_nothing() {
    let place = Place::new();
    store(&open(&place), &key(1, 0)).unwrap();
    let other = StoreIdentity {
        cache: "cd".repeat(32),
        ..identity()
    };
    let disk = Disk::open(options(place.path()), other).unwrap();
    assert_eq!(disk.probe(&[key(1, 0)]).unwrap(), [false]);
    assert!(matches!(load(&disk, &key(1, 0)), Err(TierError::Missing)));
    // But its bytes count.
    assert!(counter(&disk, "used_bytes") > 16384);
}

#[test]
fn slices_that_are_not_the_part_are_refused() {
    let place = Place::new();
    let disk = open(&place);
    assert!(matches!(
        disk.store(&key(1, 0), &[0; 100], None),
        Err(TierError::Failed(_))
    ));
    assert!(matches!(
        disk.load(&key(1, 0), &mut [&mut [0; 100]]),
        Err(TierError::Failed(_))
    ));
    let beyond = PartKey {
        head: 3,
        ..key(1, 0)
    };
    assert!(matches!(
        disk.store(&beyond, &[0; 16384], None),
        Err(TierError::Failed(_))
    ));
}

#[test]
fn direct_reads_happen_when_the_file_system_has_them() {
    let place = Place::new();
    let disk = open(&place);
    store(&disk, &key(1, 0)).unwrap();
    let file = File::open(place.file(&identity(), &key(1, 0))).unwrap();
    file.sync_data().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut into = Memory::new(16384, 0);
    disk.load(
        &key(1, 0),
        &mut into.get().chunks_mut(8192).collect::<Vec<_>>(),
    )
    .unwrap();
    let (direct, buffered) = (
        counter(&disk, "direct_reads"),
        counter(&disk, "buffered_reads"),
    );
    assert_eq!(direct + buffered, 1);
    println!(
        "{direct} direct, {buffered} buffered below {}",
        place.path().display()
    );
    // In the page cache: not again from the disk.
    let cached = open(&place);
    store(&cached, &key(2, 0)).unwrap();
    cached
        .load(
            &key(2, 0),
            &mut into.get().chunks_mut(8192).collect::<Vec<_>>(),
        )
        .unwrap();
    assert_eq!(counter(&cached, "buffered_reads"), 1);
}
