//! Latent attention: stores projected latents and rope keys, and derives values from stored keys.
//!
//! The key of a token is its latent followed by its rope key, shared by all query heads; the value
//! is the latent. Queries are projected into the latent space ("absorbed", DeepSeek-V2), so that
//! latents are never expanded to full keys and values. Keys and values have different layouts, so a
//! run of keys is converted to the layout of values once for all rows of a task.

use super::{Angles, KvPosition, SPLIT};
use crate::Cpu;
use crate::buffer::{Aligned, SharedSlice};
use crate::cpu::Norm;
use crate::isa::Isa;
use crate::kv::{KvLayout, KvType, RUN, StepLease};
use crate::ops;

/// Sizes of latent attention on one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Latent {
    pub heads: usize,
    /// `plain` and `rope`: numbers per query head without and with rotation.
    pub plain: usize,
    pub rope: usize,
    /// Numbers per latent.
    pub rank: usize,
}

/// Projected rows: `heads * (plain + rope)` numbers of queries, and `rank + rope` of latent and
/// rope key, each with its row stride.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct LatentRows<'a> {
    pub queries: (&'a [f32], usize),
    pub latents: (&'a [f32], usize),
}

impl Cpu {
    /// Normalises the latents, rotates the rope keys and the rope parts of queries, and stores the
    /// keys at `places`. Splits the queries: the parts without rotation go to `plain` (heads x rows
    /// x plain); the rope parts go to `queries`, after space for a latent (rows x heads x (rank +
    /// rope)).
    ///
    /// # Panics
    /// The rows are too short, or the pool has a different shape.
    #[allow(clippy::too_many_arguments)]
    pub fn part_latent(
        &self,
        shape: &Latent,
        from: LatentRows<'_>,
        norm: &Norm,
        angles: Option<Angles<'_>>,
        places: &[KvPosition],
        layer: usize,
        kv: &mut StepLease<'_>,
        plain: &mut [f32],
        queries: &mut [f32],
    ) {
        let (s, rows, layout) = (*shape, places.len(), *kv.layout());
        let (head, key) = (s.plain + s.rope, s.rank + s.rope);
        let fits = |(x, ld): (&[f32], usize), width| {
            ld >= width && x.len() >= rows.saturating_sub(1) * ld + width
        };
        assert!(
            fits(from.queries, s.heads * head)
                && fits(from.latents, key)
                && angles.is_none_or(|a| a.dims <= s.rope && a.cos_sin.len() >= rows * a.dims),
            "rows too short"
        );
        assert!(
            layout.latent == Some(s.rank) && layout.head_dim == key && layout.kv_heads == 1,
            "a pool of another shape"
        );
        let (plain, queries, writer) = (
            SharedSlice::new(plain),
            SharedSlice::new(queries),
            kv.writer(),
        );
        let fresh: Vec<usize> = places
            .iter()
            .filter(|p| p.offset == 0)
            .map(|p| p.block)
            .collect();
        // SAFETY: sequences own the blocks that they write, so the fresh ones are distinct.
        self.rows(fresh.len(), layout.block_size * key, &|i| unsafe {
            writer.clear(fresh[i], layer)
        });
        let rotate = |row: usize, x: &mut [f32]| {
            if let Some(Angles { cos_sin, dims }) = angles {
                ops::rotate(
                    self.isa(),
                    x,
                    s.rope,
                    &cos_sin[row * dims..(row + 1) * dims],
                );
            }
        };
        self.rows(rows, s.heads * head + key, &|row| {
            let (latents, ld) = from.latents;
            let latent = &latents[row * ld..row * ld + key];
            let mut stored = vec![0.0; key];
            self.norm(&latent[..s.rank], norm, &mut stored[..s.rank]);
            stored[s.rank..].copy_from_slice(&latent[s.rank..]);
            rotate(row, &mut stored[s.rank..]);
            // SAFETY: every row has its own place, and the blocks were cleared before.
            unsafe {
                let place = (places[row].block, places[row].offset);
                writer.store(place, layer, 0, &stored, &[]);
            }
            let (from, ld) = from.queries;
            let from = from[row * ld..row * ld + s.heads * head].chunks_exact(head);
            for (h, from) in from.enumerate() {
                // SAFETY: every task has its own rows.
                let (plain, rope) = unsafe {
                    (
                        plain.slice((h * rows + row) * s.plain, s.plain),
                        queries.slice((row * s.heads + h) * key + s.rank, s.rope),
                    )
                };
                plain.copy_from_slice(&from[..s.plain]);
                rope.copy_from_slice(&from[s.plain..]);
                rotate(row, rope);
            }
        });
    }
}

/// Converts the values, which are the first numbers of each key, to the V layout, run by run.
pub(super) fn spread<'r>(
    isa: Isa,
    layout: &KvLayout,
    runs: &mut [(&'r [u8], &'r [u8])],
    values: &'r mut Aligned<u8>,
) {
    let (dim, size) = (layout.value_dim(), layout.dtype.size());
    let bytes = RUN * dim * size;
    values.ensure(SPLIT / RUN * bytes);
    let parts = values.chunks_exact_mut(bytes);
    for ((keys, own), part) in runs.iter_mut().zip(parts) {
        values_of(isa, layout.dtype, keys, dim, part);
        *own = part;
    }
}

/// Converts a run of keys to a run of values, which are the first `dim` numbers (a multiple of 16)
/// of each key.
fn values_of(isa: Isa, dtype: KvType, keys: &[u8], dim: usize, out: &mut [u8]) {
    assert!(dim.is_multiple_of(16) && out.len() == RUN * dim * dtype.size());
    assert!(keys.len() >= out.len());
    match isa {
        // SAFETY: the instruction set is available (AVX-512 implies AVX2); shapes are asserted
        // above.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 | Isa::Avx2 => unsafe { simd::values_of(dtype, keys, dim, out) },
        _ => portable(dtype, keys, dim, out),
    }
}

fn portable(dtype: KvType, keys: &[u8], dim: usize, out: &mut [u8]) {
    let item = |at: usize| [0, 1, 2, 3].map(|i| keys[4 * at + i]);
    for (at, out) in out.chunks_exact_mut(4).enumerate() {
        let (step, d) = (at / dim, at % dim);
        match dtype {
            KvType::F32 => out.copy_from_slice(&item(d * RUN + step)),
            KvType::Bf16 => {
                let half = d % 2 * 2;
                for (token, out) in out.chunks_exact_mut(2).enumerate() {
                    let pair = item(d / 2 * RUN + 2 * step + token);
                    out.copy_from_slice(&pair[half..half + 2]);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod simd {
    use std::arch::x86_64::*;

    use crate::kv::{KvType, RUN};

    /// See [`super::values_of`].
    ///
    /// # Safety
    /// The CPU has AVX2; `keys` has at least as many bytes as `out`, RUN x `dim` numbers, and `dim`
    /// is a multiple of 16.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn values_of(dtype: KvType, keys: &[u8], dim: usize, out: &mut [u8]) {
        let (keys, out) = (keys.as_ptr().cast::<i32>(), out.as_mut_ptr().cast::<i32>());
        // Transposes squares of 8 items: rows of RUN tokens become rows of `dim` items.
        let items = match dtype {
            KvType::Bf16 => dim / 2,
            KvType::F32 => dim,
        };
        for first in (0..items).step_by(8) {
            for token in [0, 8] {
                // SAFETY: reads 8 of the `items` rows of RUN; writes 8 tokens of 8 numbers (f32),
                // or 4 pairs of tokens of 16 numbers (bf16), within the `dim` numbers.
                unsafe {
                    let rows = std::array::from_fn(|i| {
                        _mm256_loadu_si256(keys.add((first + i) * RUN + token).cast())
                    });
                    let tokens = transposed(rows);
                    match dtype {
                        KvType::F32 => {
                            for (t, row) in tokens.into_iter().enumerate() {
                                let at = (token + t) * dim + first;
                                _mm256_storeu_si256(out.add(at).cast(), row);
                            }
                        }
                        KvType::Bf16 => {
                            for t in 0..4 {
                                let at = (token / 2 + t) * dim + 2 * first;
                                let pairs = paired(tokens[2 * t], tokens[2 * t + 1]);
                                _mm256_storeu_si256(out.add(at).cast(), pairs[0]);
                                _mm256_storeu_si256(out.add(at + 8).cast(), pairs[1]);
                            }
                        }
                    }
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn transposed(r: [__m256i; 8]) -> [__m256i; 8] {
        let two = |a, b| [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
        let four = |a, b| [_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)];
        let ([a, b], [c, d]) = (two(r[0], r[1]), two(r[2], r[3]));
        let ([e, f], [g, h]) = (two(r[4], r[5]), two(r[6], r[7]));
        let ([a, b], [c, d]) = (four(a, c), four(b, d));
        let ([e, f], [g, h]) = (four(e, g), four(f, h));
        let low = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
        let high = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
        [
            low(a, e),
            low(b, f),
            low(c, g),
            low(d, h),
            high(a, e),
            high(b, f),
            high(c, g),
            high(d, h),
        ]
    }

    /// Interleaves the 16-bit items of two tokens.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn paired(a: __m256i, b: __m256i) -> [__m256i; 2] {
        let (low, high) = (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
        [
            _mm256_permute2x128_si256::<0x20>(low, high),
            _mm256_permute2x128_si256::<0x31>(low, high),
        ]
    }

    #[cfg(test)]
    mod tests {
        use super::super::{portable, values_of};
        use super::*;
        use crate::isa::Isa;

        #[test]
        fn values_have_the_bits_of_the_portable_twin() {
            if !Isa::Avx2.available() {
                eprintln!("skipped: this CPU lacks AVX2");
                return;
            }
            for dtype in [KvType::Bf16, KvType::F32] {
                for (dim, beside) in [(16, 0), (32, 16), (48, 64), (112, 16), (512, 64)] {
                    let bytes = RUN * (dim + beside) * dtype.size();
                    let keys: Vec<u8> = (0..bytes).map(|i| (i * 89 + i / 251) as u8).collect();
                    let mut want = vec![0; RUN * dim * dtype.size()];
                    let mut got = want.clone();
                    portable(dtype, &keys, dim, &mut want);
                    values_of(Isa::Avx2, dtype, &keys, dim, &mut got);
                    assert_eq!(want, got, "{dtype:?}, {dim} numbers");
                }
            }
        }
    }
}
