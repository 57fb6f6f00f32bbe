//! Latent attention against f64, and the guarantee that a row's bits depend only on its sequence.

use super::common::{Floats, Rng, bits, isas};
use half::bf16;
use penstock_kernels::{
    ActivationFormat, Activations, Angles, AttentionMask, AttentionPlan, Cpu, HeadColumns,
    HeadShape, Isa, KvLayout, KvPool, KvPosition, KvType, Latent, LatentRows, Norm, NormKind,
    Packed, Scoring, Sequence, SequenceBlocks, WeightFormat,
};

const EPS: f32 = 1e-6;

struct Case {
    shape: Latent,
    tokens: usize,
    block_size: usize,
    queries: Vec<f32>,
    latents: Vec<f32>,
    cos_sin: Vec<f32>,
    weight: Vec<f32>,
}

impl Case {
    fn random(rng: &mut Rng, shape: Latent, tokens: usize, block_size: usize) -> Self {
        let angles: Vec<f32> = rng.vec(tokens * shape.rope / 2, 3.0);
        let cos_sin = angles.chunks(shape.rope / 2).flat_map(|angles| {
            let cos = angles.iter().map(|a| a.cos());
            cos.chain(angles.iter().map(|a| a.sin()))
        });
        Self {
            shape,
            tokens,
            block_size,
            queries: rng.vec(tokens * shape.heads * (shape.plain + shape.rope), 1.0),
            latents: rng.vec(tokens * (shape.rank + shape.rope), 1.0),
            cos_sin: cos_sin.collect(),
            weight: rng.vec(shape.rank, 1.0),
        }
    }

    fn key(&self) -> usize {
        self.shape.rank + self.shape.rope
    }

    fn scale(&self) -> f32 {
        1.0 / (self.key() as f32).sqrt()
    }

    /// Rows `from..to` of `x`, `width` numbers each.
    fn rows<'a>(&self, x: &'a [f32], width: usize, from: usize, to: usize) -> &'a [f32] {
        &x[from * width..to * width]
    }
}

/// Queries without rotation (heads x rows) and attended latents (rows x heads).
fn attend(case: &Case, isa: Isa, threads: usize, dtype: KvType, chunk: usize) -> [Vec<f32>; 2] {
    let (s, key, cpu) = (&case.shape, case.key(), Cpu::new(isa, threads).unwrap());
    let layout = KvLayout {
        layers: 1,
        kv_heads: 1,
        head_dim: key,
        latent: Some(s.rank),
        block_size: case.block_size,
        dtype,
    };
    let blocks = case.tokens.div_ceil(case.block_size);
    let mut pool = KvPool::new(layout, blocks);
    let table: Vec<i32> = (0..blocks as i32).rev().collect();
    let norm = Norm {
        kind: NormKind::Rms,
        weight: case.weight.clone(),
        bias: None,
        eps: EPS,
    };
    let (mut all, mut plains) = (Vec::new(), vec![0.0; s.heads * case.tokens * s.plain]);
    for from in (0..case.tokens).step_by(chunk) {
        let to = case.tokens.min(from + chunk);
        let rows = to - from;
        let leased = SequenceBlocks {
            table: table.clone().into(),
            seen: 0..to.div_ceil(case.block_size),
            writes_from: from / case.block_size,
        };
        let mut kv = pool.lease(vec![leased]).unwrap();
        let places: Vec<KvPosition> = (from..to)
            .map(|p| KvPosition {
                block: table[p / case.block_size] as usize,
                offset: p % case.block_size,
            })
            .collect();
        let width = s.heads * (s.plain + s.rope);
        let mut plain = vec![f32::NAN; s.heads * rows * s.plain];
        // Stand-in for absorbed queries: numbers from the queries.
        let mut absorbed: Vec<f32> = (0..rows * s.heads * key)
            .map(|i| case.queries[(from * s.heads * key + i) % case.queries.len()])
            .collect();
        cpu.part_latent(
            s,
            LatentRows {
                queries: (case.rows(&case.queries, width, from, to), width),
                latents: (case.rows(&case.latents, key, from, to), key),
            },
            &norm,
            Some(Angles {
                cos_sin: case.rows(&case.cos_sin, s.rope, from, to),
                dims: s.rope,
            }),
            &places,
            0,
            &mut kv,
            &mut plain,
            &mut absorbed,
        );
        for head in 0..s.heads {
            let own = &plain[head * rows * s.plain..(head + 1) * rows * s.plain];
            plains[(head * case.tokens + from) * s.plain..][..own.len()].copy_from_slice(own);
        }
        let shape = HeadShape {
            value_dim: s.rank,
            ..HeadShape::whole(s.heads, 1, key)
        };
        let sequence = Sequence {
            start: from,
            rows: 0..rows,
        };
        let scoring = Scoring {
            seen: AttentionMask::All,
            scale: case.scale(),
            softcap: None,
            sinks: None,
        };
        let mut out = vec![f32::NAN; rows * s.heads * s.rank];
        let columns = HeadColumns {
            rows: &mut out,
            row: s.heads * s.rank,
            head: s.rank,
            first: 0,
        };
        let mut plan = AttentionPlan::new(vec![sequence], shape, threads);
        plan.run(&cpu, &kv, 0, scoring, &absorbed, s.heads * key, columns);
        all.extend(out);
    }
    [plains, all]
}

/// Reference in f64, with keys and queries rounded as stored.
fn naive(case: &Case, dtype: KvType) -> Vec<f64> {
    let (s, key) = (&case.shape, case.key());
    let stored = |v: f32| match dtype {
        KvType::Bf16 => bf16::from_f32(v).to_f32(),
        KvType::F32 => v,
    };
    let rotated = |x: &[f32], row: usize| -> Vec<f32> {
        let angles = &case.cos_sin[row * s.rope..(row + 1) * s.rope];
        let half = s.rope / 2;
        let one = |i: usize| {
            let (a, b) = (x[i % half], x[half + i % half]);
            let (cos, sin) = (angles[i % half], angles[half + i % half]);
            if i < half {
                a * cos - b * sin
            } else {
                b * cos + a * sin
            }
        };
        (0..s.rope).map(one).collect()
    };
    let keys: Vec<Vec<f64>> = (0..case.tokens)
        .map(|row| {
            let x = &case.latents[row * key..(row + 1) * key];
            let square = |v: &f32| f64::from(*v).powi(2);
            let mean = x[..s.rank].iter().map(square).sum::<f64>() / s.rank as f64;
            let norm = (mean + f64::from(EPS)).sqrt().recip() as f32;
            let latent = x[..s.rank]
                .iter()
                .zip(&case.weight)
                .map(|(x, w)| x * norm * w);
            let all = latent.chain(rotated(&x[s.rank..], row));
            all.map(|v| f64::from(stored(v))).collect()
        })
        .collect();
    let width = s.plain + s.rope;
    let mut out = Vec::new();
    for row in 0..case.tokens {
        for head in 0..s.heads {
            let at = (row * s.heads + head) * key;
            let query = &case.queries[(row * s.heads + head) * width..][..width];
            let mut q: Vec<f32> = (at..at + s.rank)
                .map(|i| case.queries[i % case.queries.len()])
                .collect();
            q.extend(rotated(&query[s.plain..], row));
            let score = |t: usize| {
                let terms = q
                    .iter()
                    .zip(&keys[t])
                    .map(|(q, k)| f64::from(stored(*q)) * k);
                terms.sum::<f64>() * f64::from(case.scale())
            };
            let scores: Vec<f64> = (0..=row).map(score).collect();
            let max = scores.iter().fold(f64::MIN, |m, &v| m.max(v));
            let weights: Vec<f64> = scores.iter().map(|v| (v - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let value = |d: usize| {
                let terms = weights.iter().zip(&keys).map(|(w, key)| w * key[d]);
                terms.sum::<f64>() / sum
            };
            out.extend((0..s.rank).map(value));
        }
    }
    out
}

fn latent(heads: usize, plain: usize, rope: usize, rank: usize) -> Latent {
    Latent {
        heads,
        plain,
        rope,
        rank,
    }
}

#[test]
fn latents_are_attended_as_in_f64_whatever_the_chunk_and_threads() {
    let mut rng = Rng(3);
    for (shape, tokens, block_size) in [
        (latent(1, 3, 2, 5), 37, 16),
        (latent(5, 20, 12, 40), 150, 32),
        (latent(16, 8, 16, 48), 300, 16),
        (latent(7, 16, 64, 64), 530, 48),
    ] {
        let case = Case::random(&mut rng, shape, tokens, block_size);
        for dtype in [KvType::F32, KvType::Bf16] {
            let want = naive(&case, dtype);
            // A rounded bf16 key may differ from the reference's in the last bit.
            let slack = if dtype == KvType::F32 { 2e-5 } else { 3e-2 };
            for isa in isas() {
                let [plain, got] = attend(&case, isa, 1, dtype, tokens);
                let width = shape.plain + shape.rope;
                for (i, &v) in plain.iter().enumerate() {
                    let (head, rest) = (i / (tokens * shape.plain), i % (tokens * shape.plain));
                    let (row, d) = (rest / shape.plain, rest % shape.plain);
                    assert_eq!(v, case.queries[(row * shape.heads + head) * width + d]);
                }
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert!(
                        (f64::from(*got) - want).abs() <= slack,
                        "{shape:?} {dtype:?} on {isa}: item {i} is {got}, not {want}"
                    );
                }
                for (threads, chunk) in [(3, 1), (2, 7), (1, 64)] {
                    let [_, other] = attend(&case, isa, threads, dtype, chunk);
                    assert_eq!(
                        bits(&got),
                        bits(&other),
                        "{shape:?} {dtype:?} on {isa}: {threads} threads, chunks of {chunk}"
                    );
                }
            }
        }
    }
}

#[test]
fn each_head_has_its_own_product() {
    let mut rng = Rng(9);
    for (heads, rows, n, k) in [(1, 1, 5, 3), (5, 7, 40, 20), (3, 130, 24, 64)] {
        let weights: Vec<Vec<f32>> = (0..heads).map(|_| rng.vec(n * k, 1.0)).collect();
        let x = rng.vec(heads * rows * k, 1.0);
        for isa in isas() {
            let cpu = Cpu::new(isa, 2).unwrap();
            let pack = |w: &Vec<f32>| {
                let weights = w.clone();
                let source = Floats { k, weights };
                Packed::pack(cpu.threads(), WeightFormat::F32, n, k, &source)
            };
            let matrices: Vec<Packed> = weights.iter().map(pack).collect();
            let mut acts = Activations::default();
            let form = ActivationFormat::F32;
            cpu.norm_quantize(&x, heads * rows, k, None, form, &mut acts);
            // Rows with padding before and after each head.
            let (head, lead) = (n + 3, 2);
            let ld = heads * head + lead;
            let mut out = vec![7.0; rows * ld];
            let columns = HeadColumns {
                rows: &mut out,
                row: ld,
                head,
                first: lead,
            };
            cpu.head_products(&matrices, &acts, columns);
            for (i, got) in out.into_iter().enumerate() {
                let (row, column) = (i / ld, i % ld);
                let place = column.checked_sub(lead).map(|c| (c / head, c % head));
                let Some((h, d)) = place.filter(|&(_, d)| d < n) else {
                    assert_eq!(got, 7.0, "beside the heads");
                    continue;
                };
                let x = &x[(h * rows + row) * k..][..k];
                let w = &weights[h][d * k..(d + 1) * k];
                let want: f64 = x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum();
                assert!((f64::from(got) - want).abs() < 1e-4, "head {h} row {row}");
            }
        }
    }
}
