//! What the tier keeps of workloads that are larger than it, against a plain LRU that is written
//! here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use penstock_kvstore::disk::{Disk, DiskOptions};
use penstock_kvstore::{PartKey, StoreIdentity, Tier, TierError};

use crate::fixtures::{
    FILE_BYTES, Place, child, counter, disk_usage, identity, key, load, open_limited, options,
    place_of_child, store_after,
};

const HEADS: u16 = 3;
/// Blocks of a full chunk, in the options of these tests.
const FULL: u64 = 2;
const CHUNK_BYTES: u64 = HEADS as u64 * FILE_BYTES;

/// The first so many blocks of document `document`, as chunks: full ones, then what is left.
fn chunks(document: u64, blocks: u64) -> Vec<PartKey> {
    let ends = (0..blocks)
        .step_by(FULL as usize)
        .map(|start| (start + FULL).min(blocks));
    ends.map(|end| PartKey {
        blocks: ((end - 1) % FULL + 1) as u16,
        ..key(document * 1000 + end, 0)
    })
    .collect()
}

fn heads(chunk: &PartKey, heads: Range<u16>) -> impl Iterator<Item = PartKey> {
    heads.map(move |head| PartKey { head, ..*chunk })
}

/// Asks a rank with these heads for chunks of a prompt, as the engine does; which it has.
fn ask(disk: &Disk, chunks: &[PartKey], of: Range<u16>) -> Vec<bool> {
    let parts: Vec<_> = chunks
        .iter()
        .flat_map(|chunk| heads(chunk, of.clone()))
        .collect();
    let found = disk.probe(&parts).unwrap();
    found
        .chunks(of.len())
        .map(|parts| parts.iter().all(|&there| there))
        .collect()
}

/// Stores the chunks from `from` on, as far as they are taken; how many were not.
fn keep(disk: &Disk, chunks: &[PartKey], from: usize, of: Range<u16>) -> usize {
    let mut refused = 0;
    for at in from..chunks.len() {
        let parent = at.checked_sub(1).map(|before| chunks[before].digest);
        for part in heads(&chunks[at], of.clone()) {
            match store_after(disk, &part, parent) {
                Ok(()) => {}
                Err(TierError::Full(_)) => {
                    refused += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    refused
}

fn leading(found: &[bool]) -> usize {
    found.iter().take_while(|there| **there).count()
}

/// One prompt: stored chunks are loaded, the rest computed and stored. Returns how many chunks were
/// there.
fn serve(disk: &Disk, chunks: &[PartKey], of: Range<u16>) -> usize {
    let there = leading(&ask(disk, chunks, of.clone()));
    for part in chunks[..there]
        .iter()
        .flat_map(|chunk| heads(chunk, of.clone()))
    {
        load(disk, &part).unwrap();
    }
    keep(disk, chunks, there, of);
    there
}

/// Least recently used first, by the book: of one prompt the end counts as older than the
/// beginning.
struct Lru {
    limit: u64,
    heads: u64,
    clock: u64,
    last_use: BTreeMap<PartKey, u64>,
}

impl Lru {
    fn new(limit: u64, heads: u64) -> Self {
        Self {
            limit,
            heads,
            clock: 0,
            last_use: BTreeMap::new(),
        }
    }

    fn bytes(&self, chunk: &PartKey) -> u64 {
        self.heads * (4096 + u64::from(chunk.blocks) * FILE_BYTES.saturating_sub(4096) / FULL)
    }

    fn serve(&mut self, chunks: &[PartKey]) -> usize {
        let there = chunks
            .iter()
            .take_while(|chunk| self.last_use.contains_key(*chunk))
            .count();
        for chunk in chunks.iter().rev() {
            self.clock += 1;
            self.last_use.insert(*chunk, self.clock);
        }
        while self
            .last_use
            .keys()
            .map(|chunk| self.bytes(chunk))
            .sum::<u64>()
            > self.limit
        {
            let oldest = self.last_use.iter().min_by_key(|(_, used)| **used).unwrap();
            let oldest = *oldest.0;
            self.last_use.remove(&oldest);
        }
        there
    }
}

/// A limit of so many full chunks, and a bit.
fn limit(chunks: u64) -> u64 {
    chunks * CHUNK_BYTES + FILE_BYTES
}

#[test]
fn a_loop_over_twice_the_disk_keeps_most_of_what_fits() {
    let place = Place::new();
    let (documents, length) = (30, 4);
    let chunks_there = documents * length / 2;
    let disk = open_limited(place.path(), limit(chunks_there));
    let mut lru = Lru::new(limit(chunks_there), HEADS.into());
    let (mut hits, mut hits_of_lru) = (0, 0);
    for round in 0..24 {
        for document in 0..documents {
            let prompt = chunks(document, length * FULL);
            let (found, found_by_lru) = (serve(&disk, &prompt, 0..HEADS), lru.serve(&prompt));
            if round >= 8 {
                (hits, hits_of_lru) = (hits + found, hits_of_lru + found_by_lru);
            }
        }
        assert!(counter(&disk, "used_bytes") <= limit(chunks_there));
    }
    let ratio = hits as f64 / (16 * documents * length) as f64;
    println!("a loop over twice the disk: {ratio:.3} of chunks found, {hits_of_lru} by LRU");
    assert_eq!(hits_of_lru, 0);
    assert!(ratio >= 0.4, "{ratio}");
    assert!(disk_usage(&place.root()) <= limit(chunks_there) + 4096);
}

/// Conversations that grow by a few blocks a turn, 40 at a time in a scrambled order, some of them
/// much longer than others; then never again.
fn turns() -> Vec<(u64, u64)> {
    let mut turns = Vec::new();
    let mut word = 88_172_645_463_325_252_u64;
    let mut random = |below: u64| {
        // xorshift64 (Marsaglia, 2003)
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word % below
    };
    let mut live: Vec<(u64, u64, u64)> = Vec::new();
    let mut born = 0;
    while turns.len() < 1200 {
        while live.len() < 40 {
            live.push((born, 1 + random(6), 1 + random(12)));
            born += 1;
        }
        let at = random(40) as usize;
        let (conversation, blocks, left) = &mut live[at];
        turns.push((*conversation, *blocks));
        *blocks += 1 + random(4);
        *left -= 1;
        if *left == 0 {
            live.swap_remove(at);
        }
    }
    turns
}

#[test]
fn conversations_are_found_as_often_as_by_lru() {
    for capacity in [60, 150] {
        let place = Place::new();
        let limit_bytes = capacity * FILE_BYTES + FILE_BYTES / 2;
        let options = DiskOptions {
            limit_bytes,
            ..options(place.path())
        };
        let one_head = StoreIdentity {
            kv_heads: 1,
            ..identity()
        };
        let disk = Disk::open(options, one_head).unwrap();
        let mut lru = Lru::new(limit_bytes, 1);
        let (mut hits, mut hits_of_lru, mut all) = (0, 0, 0);
        for (conversation, blocks) in turns() {
            let prompt = chunks(conversation, blocks);
            hits += serve(&disk, &prompt, 0..1);
            hits_of_lru += lru.serve(&prompt);
            all += prompt.len();
        }
        println!("conversations, {capacity} chunks: {hits} of {all} found, {hits_of_lru} by LRU");
        assert!(hits_of_lru > all / 10, "nothing to compare with");
        assert!(
            hits as f64 >= 0.97 * hits_of_lru as f64,
            "{hits} of {hits_of_lru}"
        );
    }
}

#[test]
fn ranks_decide_alike() {
    let place = Place::new();
    let (documents, length) = (24, 4);
    let limit = limit(documents * length / 2);
    let ranks = [
        (open_limited(place.path(), limit), 0..2),
        (open_limited(place.path(), limit), 2..3),
    ];
    let (mut hits, mut asked, mut halves) = (0, 0, 0);
    for round in 0..24 {
        for document in 0..documents {
            let prompt = chunks(document, length * FULL);
            // The engine asks all ranks, and loads what all have.
            let found: Vec<_> = ranks
                .iter()
                .map(|(disk, of)| ask(disk, &prompt, of.clone()))
                .collect();
            let both: Vec<bool> = (0..prompt.len())
                .map(|at| found[0][at] && found[1][at])
                .collect();
            let there = leading(&both);
            std::thread::scope(|scope| {
                for (disk, of) in &ranks {
                    let prompt = &prompt;
                    scope.spawn(move || keep(disk, prompt, there, of.clone()));
                }
            });
            if round >= 8 {
                hits += there;
                asked += prompt.len();
                halves += (0..prompt.len())
                    .filter(|&at| found[0][at] != found[1][at])
                    .count();
            }
        }
        assert!(disk_usage(&place.root()) <= limit + 2 * CHUNK_BYTES);
    }
    let (ratio, half) = (hits as f64 / asked as f64, halves as f64 / asked as f64);
    println!("two ranks: {ratio:.3} of chunks found, {half:.3} with one rank only");
    assert!(ratio >= 0.4, "{ratio}");
    assert!(half <= 0.05, "{half}");
}

/// Documents of the loop of several processes, and the chunks of one.
const LOOP: (u64, u64) = (20, 4);

#[test]
fn engines_that_share_a_directory_keep_much_of_what_fits() {
    let place = Place::new();
    let limit = limit(LOOP.0 * LOOP.1 / 2);
    drop(open_limited(place.path(), limit));
    let mut engines: Vec<_> = (0..2)
        .map(|_| child("worth::loops_over_twice_the_disk", place.path()))
        .collect();
    let mut most = 0;
    let deadline = Instant::now() + Duration::from_secs(120);
    while engines
        .iter_mut()
        .any(|engine| engine.try_wait().unwrap().is_none())
    {
        most = most.max(disk_usage(&place.root()));
        assert!(Instant::now() < deadline, "the engines do not end");
    }
    for engine in &mut engines {
        assert!(engine.wait().unwrap().success());
    }
    // Each may have begun a chunk that the other does not see yet.
    assert!(most <= limit + 4 * CHUNK_BYTES, "{most} of {limit}");
    assert_eq!(
        counter(&open_limited(place.path(), limit), "quarantined_chunks"),
        0
    );
}

#[test]
#[ignore = "an engine of engines_that_share_a_directory_keep_much_of_what_fits"]
fn loops_over_twice_the_disk() {
    let Some(path) = place_of_child() else { return };
    let disk = open_limited(&path, limit(LOOP.0 * LOOP.1 / 2));
    let mut hits = 0;
    for round in 0..24 {
        disk.tick();
        for document in 0..LOOP.0 {
            let prompt = chunks(document, LOOP.1 * FULL);
            let there = leading(&ask(&disk, &prompt, 0..HEADS));
            keep(&disk, &prompt, there, 0..HEADS);
            hits += if round < 12 { 0 } else { there as u64 };
        }
    }
    let ratio = hits as f64 / (12 * LOOP.0 * LOOP.1) as f64;
    eprintln!("an engine of two: {ratio:.3} of chunks found");
    // Each has counts of its own and they differ in what to keep, so it is less than the half that
    // fits; LRU has nothing.
    assert!(ratio >= 0.1, "{ratio}");
}

#[test]
fn what_another_process_wrote_keeps_what_it_knows() {
    let place = Place::new();
    let prompt = chunks(1, 3 * FULL);
    let disk = open_limited(place.path(), limit(4));
    keep(&disk, &prompt, 0, 0..HEADS);
    drop(disk);
    // Loading tells the next process what continues what: the beginning leaves last, though it is
    // as old as the rest.
    let disk = open_limited(place.path(), limit(4));
    assert_eq!(serve(&disk, &prompt, 0..HEADS), 3);
    let others = chunks(2, 2 * FULL);
    keep(&disk, &others[..1], 0, 0..HEADS);
    keep(&disk, &others, 1, 0..HEADS);
    assert_eq!(leading(&ask(&disk, &prompt, 0..HEADS)), 2);
}

#[test]
fn what_other_models_left_makes_room() {
    for described in [true, false] {
        let place = Place::new();
        let other = StoreIdentity {
            cache: "0".repeat(64),
            ..identity()
        };
        let limited = |limit_bytes| DiskOptions {
            limit_bytes,
            ..options(place.path())
        };
        let stranger = Disk::open(limited(limit(12)), other.clone()).unwrap();
        let old: Vec<_> = (0..12).map(|number| key(number, 0)).collect();
        // The same names in both stores are different chunks.
        keep(&stranger, &old, 0, 0..HEADS);
        drop(stranger);
        let directory = place.file(&other, &old[0]);
        let store = directory.parent().unwrap().parent().unwrap();
        if !described {
            std::fs::remove_file(store.join("identity.json")).unwrap();
        }
        let disk = Disk::open(limited(limit(12)), identity()).unwrap();
        assert_eq!(counter(&disk, "chunks"), 12);
        keep(&disk, &old[..8], 0, 0..HEADS);
        assert_eq!(ask(&disk, &old[..8], 0..HEADS), [true; 8]);
        assert!(counter(&disk, "used_bytes") <= limit(12));
        let left = old
            .iter()
            .filter(|key| place.file(&other, key).exists())
            .count();
        assert!((2..=4).contains(&left), "{left}");
        assert!(disk_usage(&place.root()) <= limit(12) + 2 * 4096);
    }
}

/// A chunk of the group of requests with salt `salt`.
fn of_group(salt: u8, number: u64) -> PartKey {
    let mut key = key(number, 0);
    key.digest[..4].fill(salt);
    key
}

fn group_count(disk: &Disk, salt: u8, numbers: Range<u64>) -> usize {
    let chunks: Vec<_> = numbers.map(|number| of_group(salt, number)).collect();
    ask(disk, &chunks, 0..HEADS)
        .iter()
        .filter(|there| **there)
        .count()
}

#[test]
fn a_salt_has_its_quota() {
    let place = Place::new();
    let quota = |share| DiskOptions {
        limit_bytes: limit(40),
        quota: Some(share),
        ..options(place.path())
    };
    let disk = Disk::open(quota(0.25), identity()).unwrap();
    let keep_one = |disk: &Disk, key: PartKey| keep(disk, &[key], 0, 0..HEADS);
    (0..12).for_each(|number| assert_eq!(keep_one(&disk, of_group(1, number)), 0));
    (0..12).for_each(|number| assert_eq!(keep_one(&disk, of_group(2, number)), 0));
    // 40 chunks and a bit: a quarter is ten.
    assert_eq!(
        (group_count(&disk, 1, 0..12), group_count(&disk, 2, 0..12)),
        (10, 10)
    );
    assert_eq!(
        group_count(&disk, 1, 2..12),
        10,
        "the oldest of its own left"
    );
    // Requests without a salt have no quota; those with one keep theirs while the others leave
    // room.
    (0..20).for_each(|number| assert_eq!(keep_one(&disk, of_group(0, number)), 0));
    assert_eq!(group_count(&disk, 0, 0..20), 20);
    assert_eq!(
        (group_count(&disk, 1, 0..12), group_count(&disk, 2, 0..12)),
        (10, 10)
    );
    drop(disk);
    // Another process knows whose they are, and a smaller quota is kept from the next store on.
    let disk = Disk::open(quota(0.1), identity()).unwrap();
    assert_eq!(keep_one(&disk, of_group(1, 50)), 0);
    assert_eq!(
        (group_count(&disk, 1, 0..51), group_count(&disk, 2, 0..12)),
        (4, 10)
    );
    let none = Disk::open(quota(0.001), identity()).unwrap();
    assert_eq!(keep_one(&none, of_group(3, 1)), 1);
}

#[test]
fn one_salt_does_not_push_out_the_others() {
    let place = Place::new();
    let disk = Disk::open(
        DiskOptions {
            limit_bytes: limit(40),
            quota: Some(0.5),
            ..options(place.path())
        },
        identity(),
    )
    .unwrap();
    let keep_one = |key: PartKey| keep(&disk, &[key], 0, 0..HEADS);
    (0..15).for_each(|number| {
        keep_one(of_group(1, number));
    });
    (0..500).for_each(|number| {
        keep_one(of_group(2, number));
    });
    assert_eq!(group_count(&disk, 1, 0..15), 15);
    assert_eq!(group_count(&disk, 2, 480..500), 20);
}
