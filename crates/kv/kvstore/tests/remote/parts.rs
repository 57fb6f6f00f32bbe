//! Parts to store, and tiers as functions of owned bytes.

use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use penstock_kvstore::{PartKey, StoreIdentity, Tier, TierError};

/// Nothing here takes longer unless it hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);

pub(crate) fn identity(name: &str) -> StoreIdentity {
    StoreIdentity {
        cache: name.into(),
        layers: 4,
        kv_heads: 2,
        block_tokens: 16,
        tile_bytes: 1024,
        dtype: "bf16".into(),
    }
}

pub(crate) fn key(chunk: u8, head: u16) -> PartKey {
    PartKey {
        digest: [chunk; 32],
        blocks: 3,
        head,
        layers: (0, 4),
    }
}

/// `blocks` slices of `bytes`, different for every seed.
pub(crate) fn payload(seed: u64, blocks: usize, bytes: usize) -> Vec<Vec<u8>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..blocks)
        .map(|_| (0..bytes).map(|_| byte()).collect())
        .collect()
}

pub(crate) fn store(tier: &dyn Tier, key: &PartKey, payload: &[Vec<u8>]) -> Result<(), TierError> {
    tier.store(key, &payload.concat(), None)
}

/// Loads into slices of the same sizes as `like`.
pub(crate) fn load(
    tier: &dyn Tier,
    key: &PartKey,
    like: &[Vec<u8>],
) -> Result<Vec<Vec<u8>>, TierError> {
    let mut slices: Vec<Vec<u8>> = like.iter().map(|slice| vec![0xee; slice.len()]).collect();
    let mut into: Vec<&mut [u8]> = slices.iter_mut().map(Vec::as_mut_slice).collect();
    tier.load(key, &mut into)?;
    Ok(slices)
}

/// What the tier does with a part that somebody damaged: says so, has it no more, takes
/// it again.
pub(crate) fn assert_damage_is_noticed(
    tier: &dyn Tier,
    key: &PartKey,
    payload: &[Vec<u8>],
    what: &str,
) {
    let error = load(tier, key, payload).unwrap_err();
    assert!(matches!(error, TierError::Damaged(_)), "{what}: {error}");
    assert!(
        matches!(load(tier, key, payload), Err(TierError::Missing)),
        "{what}"
    );
    assert_eq!(tier.probe(&[*key]).unwrap(), [false], "{what}");
    store(tier, key, payload).unwrap();
    assert_eq!(load(tier, key, payload).unwrap(), payload, "{what}");
}

/// Calls until it succeeds.
pub(crate) fn until<T, E: std::fmt::Debug>(mut call: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match call() {
            Ok(value) => return value,
            Err(error) => assert!(start.elapsed() < DEADLINE, "{error:?}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A port below the ephemeral range, another one at each call: a connection of some other test can
/// not take it before the server that it is for listens.
pub(crate) fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let first = process::id() % 10_000;
    loop {
        let step = CALLS.fetch_add(1, Ordering::Relaxed) * 7;
        let port = 12_000 + u16::try_from((first + step) % 10_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A directory that goes with its owner.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "penstock-remote-{}-{}",
            process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Says that a test is skipped even when the output of passed tests is not shown.
pub(crate) fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}
