//! Paged attention against f64, and the guarantee that a row's bits depend only on its sequence up
//! to the row itself.
mod machine;

use super::common::{Rng, bits, isas};
use half::bf16;
use machine::{Chunk, Machine, Setting, Text, store_only, width};
use penstock_kernels::{AttentionMask, HeadShape, Isa, KvType};
use proptest::prelude::*;

/// Reference: softmax attention in f64 over keys, values and queries as stored, for the rows
/// `from..`.
fn naive(text: &Text, set: Setting, from: usize) -> Vec<f64> {
    let s = &text.shape;
    let stored = |v: f32| {
        f64::from(if set.dtype == KvType::Bf16 {
            bf16::from_f32(v).to_f32()
        } else {
            v
        })
    };
    let mut out = Vec::new();
    for p in from..text.len() {
        let first = match set.seen {
            AttentionMask::All => 0,
            AttentionMask::Window(w) => (0..=p).find(|t| p - t < w).unwrap(),
            AttentionMask::Chunk(c) => (0..=p).find(|t| t / c == p / c).unwrap(),
        };
        for head in 0..s.heads {
            let kv_head = (s.skipped + head) / s.group;
            let score = |t: usize| {
                let terms = text
                    .head(p, 0, head)
                    .iter()
                    .zip(text.head(t, 1, kv_head))
                    .map(|(&q, &k)| stored(q) * stored(k));
                let score = terms.sum::<f64>() / (s.head_dim as f64).sqrt();
                let cap = set.softcap.map(f64::from);
                cap.map_or(score, |cap| cap * (score / cap).tanh())
            };
            let scores: Vec<f64> = (first..=p).map(score).collect();
            let sink = set.sink(head).map(f64::from);
            let max = scores.iter().chain(&sink).fold(f64::MIN, |m, &v| m.max(v));
            let weights: Vec<f64> = scores.iter().map(|v| (v - max).exp()).collect();
            let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |z| (z - max).exp());
            let value = |d: usize| {
                let terms = weights
                    .iter()
                    .zip(first..=p)
                    .map(|(w, t)| w * stored(text.head(t, 2, kv_head)[d]));
                terms.sum::<f64>() / sum
            };
            out.extend((0..s.head_dim).map(value));
        }
    }
    out
}

fn assert_near(got: &[f32], text: &Text, set: Setting, from: usize) {
    // Values are in [-2, 2]. With bf16 keys, probabilities are rounded to bf16 (8 bits). The
    // roundings are independent, so their sum stays below half of the bound.
    let slack = if set.dtype == KvType::Bf16 {
        2.0 * 2f64.powi(-9)
    } else {
        2e-5
    };
    for (i, (&got, want)) in got.iter().zip(naive(text, set, from)).enumerate() {
        let (row, rest) = (
            from + i / (text.shape.heads * text.shape.head_dim),
            i % (text.shape.heads * text.shape.head_dim),
        );
        assert!(
            (f64::from(got) - want).abs() <= slack,
            "{set:?}: position {row} item {rest}: {got}, not {want}"
        );
    }
}

fn shapes() -> impl Strategy<Value = HeadShape> {
    let dims = proptest::sample::select(&[16usize, 20, 32, 64, 80, 96, 128][..]);
    let heads = (1usize..=8, 1usize..3).prop_flat_map(|(group, kv_heads)| {
        // Any contiguous range of query heads, as on one rank.
        let all = group * kv_heads;
        (0..all).prop_flat_map(move |first| (Just((group, first)), 1..=all - first))
    });
    (dims, heads).prop_map(|(head_dim, ((group, first), heads))| HeadShape {
        heads,
        group,
        skipped: first % group,
        head_dim,
        value_dim: head_dim,
    })
}

fn settings() -> impl Strategy<Value = Setting> {
    let blocks = proptest::sample::select(&[16usize, 32, 64][..]);
    let sizes = proptest::sample::select(&[1usize, 7, 16, 100, 256, 300, 700][..]);
    let seen = (0usize..3, sizes).prop_map(|(kind, size)| {
        [
            AttentionMask::All,
            AttentionMask::Window(size),
            AttentionMask::Chunk(size),
        ][kind]
    });
    let caps = proptest::option::of(Just(2.5f32));
    let dtypes = proptest::sample::select(&[KvType::Bf16, KvType::F32][..]);
    (dtypes, blocks, seen, caps, any::<bool>(), 1usize..4).prop_map(
        |(dtype, block_size, seen, softcap, sinks, threads)| Setting {
            isa: Isa::Portable,
            threads,
            dtype,
            block_size,
            seen,
            softcap,
            sinks,
        },
    )
}

/// The settings on every instruction set. The portable one emulates fused multiply-adds and gets
/// small work only.
fn on_each_isa(set: Setting, work: usize) -> impl Iterator<Item = Setting> {
    let isas = isas()
        .into_iter()
        .filter(move |&isa| isa != Isa::Portable || work < 2_000_000);
    isas.map(move |isa| Setting { isa, ..set })
}

/// Multiply-adds of a text's attention.
fn work(shape: &HeadShape, rows: usize, context: usize) -> usize {
    rows * context * shape.heads * shape.head_dim
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_mixed_batch_is_near_f64(
        shape in shapes(), set in settings(),
        lengths in proptest::collection::vec((1usize..420, 1usize..40), 1..5), seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let texts: Vec<Text> = lengths.iter().map(|l| Text::random(&mut rng, shape, l.0)).collect();
        // The last positions of each text form the batch: decodes and prefill chunks together.
        let starts: Vec<usize> = lengths.iter().enumerate().map(
            |(i, l)| l.0.saturating_sub(if i % 2 == 0 { 1 } else { l.1 })
        ).collect();
        let total = lengths.iter().map(|l| l.0 + 64).sum();
        for set in on_each_isa(set, lengths.iter().map(|l| work(&shape, l.0, l.0)).sum()) {
            let mut machine = Machine::new(&mut rng, shape, set, total);
            let tables: Vec<Vec<i32>> = texts.iter().map(|t| machine.table(t.len())).collect();
            let chunk =
                |i: usize, start, end| Chunk { text: &texts[i], start, end, table: &tables[i] };
            let before: Vec<Chunk<'_>> = (0..texts.len()).filter(|&i| starts[i] > 0).map(
                |i| chunk(i, 0, starts[i])
            ).collect();
            if !before.is_empty() {
                machine.step(&before);
            }
            let batch: Vec<Chunk<'_>> =
                (0..texts.len()).map(|i| chunk(i, starts[i], texts[i].len())).collect();
            let mut got = &machine.step(&batch)[..];
            for (text, &start) in texts.iter().zip(&starts) {
                let (own, rest) = got.split_at((text.len() - start) * shape.heads * shape.head_dim);
                assert_near(own, text, set, start);
                got = rest;
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_however_it_is_computed(
        shape in shapes(), set in settings(), len in 1usize..330, seed in any::<u64>()
    ) {
        let mut rng = Rng(seed);
        let text = Text::random(&mut rng, shape, len);
        for set in on_each_isa(set, 3 * work(&shape, len, len)) {
            let whole = Machine::new(&mut rng, shape, set, len).alone(&text, || len);
            let mut sizes = Rng(seed ^ 1);
            let chunked =
                Machine::new(&mut rng, shape, set, len).alone(&text, || 1 + sizes.below(60));
            prop_assert_eq!(bits(&whole), bits(&chunked), "{:?}: chunks", set);
            let threads = Setting { threads: 4 - set.threads, ..set };
            let other =
                Machine::new(&mut rng, shape, threads, len).alone(&text, || len.div_ceil(2));
            prop_assert_eq!(bits(&whole), bits(&other), "{:?}: {} threads", set, threads.threads);
            let blocks = Setting { block_size: 48, ..set };
            let other = Machine::new(&mut rng, shape, blocks, len).alone(&text, || len);
            prop_assert_eq!(bits(&whole), bits(&other), "{:?}: blocks of 48", set);
        }
    }
}

/// Long contexts of several splits: decodes whose splits are separate tasks, decodes whose splits
/// are one task, and one prefill.
#[test]
fn long_contexts_have_the_same_bits_by_every_path() {
    let mut rng = Rng(5);
    for (head_dim, heads, kv_heads, len, seen, sinks) in [
        (64, 9, 3, 1100, AttentionMask::All, true),
        (20, 2, 1, 780, AttentionMask::Window(300), true),
        (128, 4, 1, 520, AttentionMask::All, false),
        (20, 3, 3, 780, AttentionMask::Chunk(520), true),
    ] {
        let shape = HeadShape::whole(heads, kv_heads, head_dim);
        let text = Text::random(&mut rng, shape, len);
        for dtype in [KvType::Bf16, KvType::F32] {
            for isa in isas()
                .into_iter()
                .filter(|&isa| isa != Isa::Portable || head_dim == 20)
            {
                let set = |threads| Setting {
                    isa,
                    threads,
                    dtype,
                    block_size: 32,
                    seen,
                    softcap: None,
                    sinks,
                };
                let whole = Machine::new(&mut rng, shape, set(1), len).alone(&text, || 300);
                let row = heads * head_dim;
                for threads in [1, 3] {
                    let mut machine = Machine::new(&mut rng, shape, set(threads), len);
                    let table = machine.table(len);
                    let start = len - 9;
                    machine.step(&[Chunk {
                        text: &text,
                        start: 0,
                        end: start,
                        table: &table,
                    }]);
                    for p in start..len {
                        let got = machine.step(&[Chunk {
                            text: &text,
                            start: p,
                            end: p + 1,
                            table: &table,
                        }]);
                        assert_eq!(
                            bits(&got),
                            bits(&whole[p * row..(p + 1) * row]),
                            "{isa} {dtype:?} {threads} threads, position {p}"
                        );
                    }
                }
                assert_near(&whole[(len - 3) * row..], &text, set(1), len - 3);
            }
        }
    }
}

/// Windows that start in any block: the earliest block that a task reads depends on its first row.
#[test]
fn windows_begin_anywhere() {
    let mut rng = Rng(8);
    let shape = HeadShape::whole(4, 2, 48);
    let text = Text::random(&mut rng, shape, 330);
    for (isa, block_size) in isas().into_iter().flat_map(|isa| [(isa, 16), (isa, 48)]) {
        let set = Setting {
            isa,
            threads: 1,
            dtype: KvType::Bf16,
            block_size,
            seen: AttentionMask::Window(90),
            softcap: None,
            sinks: false,
        };
        let mut sizes = [330, 1, 16, 23].into_iter().map(|size| {
            let mut machine = Machine::new(&mut rng, shape, set, text.len());
            bits(&machine.alone(&text, || size))
        });
        let whole = sizes.next().unwrap();
        assert!(
            sizes.all(|other| other == whole),
            "{isa}, blocks of {block_size}"
        );
    }
}

#[test]
fn sequences_do_not_touch_each_other() {
    let mut rng = Rng(6);
    let shape = HeadShape::whole(6, 2, 32);
    let texts: Vec<Text> = [300, 1, 77, 256, 33, 513]
        .map(|len| Text::random(&mut rng, shape, len))
        .into();
    for isa in isas() {
        let set = Setting {
            isa,
            threads: 2,
            dtype: KvType::Bf16,
            block_size: 16,
            seen: AttentionMask::All,
            softcap: None,
            sinks: false,
        };
        let mut machine = Machine::new(&mut rng, shape, set, 1300 + 6 * 16);
        let tables: Vec<Vec<i32>> = texts.iter().map(|t| machine.table(t.len())).collect();
        let chunk = |i: usize| Chunk {
            text: &texts[i],
            start: 0,
            end: texts[i].len(),
            table: &tables[i],
        };
        let together = machine.step(&(0..texts.len()).map(chunk).collect::<Vec<_>>());
        let alone: Vec<f32> = texts
            .iter()
            .flat_map(|t| Machine::new(&mut rng, shape, set, t.len()).alone(t, || t.len()))
            .collect();
        assert_eq!(bits(&together), bits(&alone), "{isa}");
    }
}

/// A block in which the previous owner left NaN and infinity gives the next owner the results of a
/// fresh block.
#[test]
fn poison_of_an_earlier_owner_is_gone() {
    let mut rng = Rng(7);
    let shape = HeadShape::whole(3, 1, 20);
    let text = Text::random(&mut rng, shape, 37);
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        let bad = Text {
            shape,
            rows: vec![poison; 64 * width(&shape)],
        };
        for isa in isas() {
            for dtype in [KvType::Bf16, KvType::F32] {
                let set = Setting {
                    isa,
                    threads: 1,
                    dtype,
                    block_size: 32,
                    seen: AttentionMask::All,
                    softcap: None,
                    sinks: false,
                };
                let fresh = Machine::new(&mut rng, shape, set, 64).alone(&text, || 64);
                for size in [1, 5, 37] {
                    let mut machine = Machine::new(&mut rng, shape, set, 64);
                    let blocks = machine.free.clone();
                    for pair in blocks.chunks_exact(2) {
                        store_only(&mut machine, &bad, pair);
                    }
                    let got = machine.alone(&text, || size);
                    assert_eq!(
                        bits(&got),
                        bits(&fresh),
                        "{isa} {dtype:?} after {poison} in steps of {size}"
                    );
                }
            }
        }
    }
}

/// Keys so different that all weights but one underflow, and equal keys.
#[test]
fn peaked_and_flat_softmax_stay_finite() {
    let shape = HeadShape::whole(1, 1, 16);
    for scale in [0.0, 1.0, 1e4] {
        let len = 600;
        let rows = (0..len).flat_map(|p| {
            let key = if p == 300 { scale } else { -scale };
            let value = p as f32 / len as f32;
            [[1.0; 16], [key; 16], [value; 16]].concat()
        });
        let text = Text {
            shape,
            rows: rows.collect(),
        };
        for isa in isas() {
            for dtype in [KvType::Bf16, KvType::F32] {
                let set = Setting {
                    isa,
                    threads: 2,
                    dtype,
                    block_size: 16,
                    seen: AttentionMask::All,
                    softcap: None,
                    sinks: false,
                };
                let got = Machine::new(&mut Rng(1), shape, set, len).alone(&text, || 250);
                assert_near(&got[599 * 16..], &text, set, 599);
            }
        }
    }
}
