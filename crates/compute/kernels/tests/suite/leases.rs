//! Leases and loans of blocks: rules, layout of a lent block, and concurrency.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::common::{Rng, uses};
use penstock_kernels::{
    BlockBusy, Cpu, Isa, KvLayout, KvPool, KvPosition, KvType, PoolHandle, RUN, Rotation,
};

fn layout(layers: usize, kv_heads: usize, dtype: KvType) -> KvLayout {
    KvLayout {
        layers,
        kv_heads,
        head_dim: 16,
        latent: None,
        block_size: 32,
        dtype,
    }
}

fn small() -> KvPool {
    KvPool::new(layout(2, 3, KvType::Bf16), 6)
}

#[test]
fn a_block_has_readers_or_one_writer() {
    let pool = small().handle();
    let (one, two) = (pool.read(2).unwrap(), pool.read(2).unwrap());
    assert_eq!(one.len(), pool.block_bytes());
    assert!(pool.write(2).is_none());
    drop(one);
    assert!(pool.write(2).is_none());
    drop(two);
    let mut writer = pool.write(2).unwrap();
    writer.fill(7);
    assert!(pool.read(2).is_none() && pool.write(2).is_none());
    assert!(pool.read(1).is_some() && pool.write(3).is_some());
    drop(writer);
    assert!(pool.read(2).unwrap().iter().all(|&b| b == 7));
    assert!(pool.read(1).unwrap().iter().all(|&b| b == 0));
    assert!(pool.read(6).is_none() && pool.write(usize::MAX).is_none());
}

/// A block guard keeps the memory alive after the pool is dropped.
#[test]
fn a_guard_outlives_the_pool() {
    let pool = small();
    let mut guard = pool.handle().write(0).unwrap();
    drop(pool);
    guard.fill(1);
    assert_eq!(guard[5], 1);
}

#[test]
fn a_lease_takes_what_it_names_and_gives_it_back() {
    let mut pool = small();
    let handle = pool.handle();
    let storing = handle.read(0).unwrap();
    let lease = pool.lease(uses(&[0, 2, 0, 3], &[1, 2, 1])).unwrap();
    for block in [1, 2] {
        assert!(handle.read(block).is_none() && handle.write(block).is_none());
    }
    for block in [0, 3] {
        assert!(handle.read(block).is_some() && handle.write(block).is_none());
    }
    assert!(handle.write(4).is_some());
    drop(lease);
    assert!((1..6).all(|block| handle.write(block).is_some()));
    assert!(handle.write(0).is_none());
    drop(storing);
    assert!(handle.write(0).is_some());
}

#[test]
fn a_lease_that_is_refused_leaves_nothing_behind() {
    let mut pool = small();
    let handle = pool.handle();
    let refused = |pool: &mut KvPool, writes: &[usize], reads: &[usize]| {
        pool.lease(uses(reads, writes)).err().unwrap()
    };
    let busy = |block, writing| BlockBusy { block, writing };
    let loading = handle.write(4).unwrap();
    assert_eq!(refused(&mut pool, &[1, 4], &[]), busy(4, true));
    assert_eq!(refused(&mut pool, &[1], &[2, 4]), busy(4, true));
    drop(loading);
    let storing = handle.read(5).unwrap();
    assert_eq!(refused(&mut pool, &[5], &[1]), busy(5, false));
    drop(storing);
    assert!((0..6).all(|block| handle.write(block).is_some()));
}

/// After a panic in a step, or a leaked lease, the pool can be leased again.
#[test]
fn a_lease_ends_with_a_panic() {
    let mut pool = small();
    let handle = pool.handle();
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _lease = pool.lease(uses(&[2], &[1])).unwrap();
        panic!("in a step")
    }));
    assert!(died.is_err() && handle.write(1).is_some() && handle.write(2).is_some());
    std::mem::forget(pool.lease(uses(&[2], &[1])).unwrap());
    assert!(handle.write(1).is_none() && handle.write(2).is_none());
    drop(pool.lease(uses(&[1], &[2])).unwrap());
    assert!(handle.write(1).is_some() && handle.write(2).is_some());
}

/// Kernels write only the blocks leased for writing.
#[test]
fn a_block_without_a_lease_is_not_written() {
    let mut pool = small();
    let cpu = Cpu::new(Isa::detect(), 1).unwrap();
    let rotation = Rotation::default();
    let place = [KvPosition {
        block: 1,
        offset: 3,
    }];
    let mut kv = pool.lease(uses(&[1], &[0])).unwrap();
    let mut row = vec![0.0; (3 + 6) * 16];
    let store = std::panic::AssertUnwindSafe(|| {
        cpu.rotate_and_store(&mut row, 3, &rotation, &place, 0, &mut kv);
    });
    assert!(std::panic::catch_unwind(store).is_err());
}

/// The bytes of a lent block, item by item, in the layout of `kv/layout.rs`: head, layer, K or V.
#[test]
fn a_block_is_head_by_head_and_layer_by_layer() {
    let shape = layout(3, 2, KvType::F32);
    let (mut pool, d, heads) = (KvPool::new(shape, 2), 16, 4);
    let cpu = Cpu::new(Isa::detect(), 2).unwrap();
    let mut rng = Rng(5);
    let width = (heads + 2 * shape.kv_heads) * d;
    let places: Vec<KvPosition> = (0..32)
        .map(|offset| KvPosition { block: 1, offset })
        .collect();
    let rows: Vec<Vec<f32>> = (0..3).map(|_| rng.vec(32 * width, 2.0)).collect();
    let mut kv = pool.lease(uses(&[], &[1])).unwrap();
    for (layer, rows) in rows.iter().enumerate() {
        let rotation = Rotation::default();
        let mut rows = rows.clone();
        cpu.rotate_and_store(&mut rows, heads, &rotation, &places, layer, &mut kv);
    }
    drop(kv);
    let block = pool.handle().read(1).unwrap();
    let number = |at: usize| f32::from_le_bytes(block[4 * at..4 * at + 4].try_into().unwrap());
    let part = 32 * d;
    assert_eq!(block.len(), 2 * 3 * 2 * part * 4);
    assert_eq!(shape.tile_bytes(), 2 * part * 4);
    for head in 0..2 {
        for (layer, rows) in rows.iter().enumerate() {
            for token in 0..32 {
                let row = &rows[token * width..];
                let tile = (head * 3 + layer) * 2 * part + token / RUN * RUN * d;
                for i in 0..d {
                    let (k, v) = (heads * d + head * d + i, (heads + 2 + head) * d + i);
                    assert_eq!(number(tile + i * RUN + token % RUN), row[k]);
                    assert_eq!(number(tile + part + token % RUN * d + i), row[v]);
                }
            }
        }
    }
}

/// One thread of the stress test below: borrows at random and checks for exclusive access.
fn borrow(pool: &PoolHandle, mut rng: Rng, stop: &AtomicBool, granted: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        let block = rng.below(pool.blocks());
        if rng.below(2) == 0 {
            let Some(mut write) = pool.write(block) else {
                continue;
            };
            let mark = rng.below(256) as u8;
            write.fill(mark);
            assert!(write.iter().all(|&b| b == mark), "two writers");
        } else {
            let Some(read) = pool.read(block) else {
                continue;
            };
            let mark = read[0];
            for _ in 0..3 {
                assert!(read.iter().all(|&b| b == mark), "a reader beside a writer");
            }
        }
        granted.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn threads_never_meet_in_a_block() {
    let mut pool = small();
    let handle = pool.handle();
    let (stop, granted) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (handle, stop, granted) = (&handle, &stop, &granted);
            scope.spawn(move || borrow(handle, Rng(seed), stop, granted));
        }
        let mut rng = Rng(9);
        let (mut leases, mut alone, began) = (0, true, Instant::now());
        while leases < 500 || granted.load(Ordering::Relaxed) < 500 {
            if began.elapsed() > Duration::from_secs(60) {
                break;
            }
            let (write, read) = (rng.below(6), rng.below(6));
            let Ok(lease) = pool.lease(uses(&[read], &[write])) else {
                continue;
            };
            leases += 1;
            alone &= handle.read(write).is_none() && handle.write(write).is_none();
            alone &= handle.write(read).is_none();
            drop(lease);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(alone && leases >= 500);
    });
    assert!(granted.load(Ordering::Relaxed) >= 500);
    assert!((0..6).all(|block| handle.write(block).is_some()));
}
