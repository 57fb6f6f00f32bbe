//! From projected rows to stored keys and values: norms and rotation of query and key heads, and
//! the store to the pool.

use crate::Cpu;
use crate::buffer::SharedSlice;
use crate::isa::Isa;
use crate::kv::StepLease;
use crate::ops;

/// Destination of a row's key and value.
#[derive(Clone, Copy, Debug)]
pub struct KvPosition {
    /// Block of the pool.
    pub block: usize,
    /// Token offset in the block.
    pub offset: usize,
}

/// Norms and rotation of query and key heads before use.
#[derive(Clone, Copy, Default)]
pub struct Rotation<'a> {
    /// RMS norm of each head.
    pub norms: Option<HeadNorms<'a>>,
    /// `None` = no rotation.
    pub angles: Option<Angles<'a>>,
    /// Factor of each row's queries after rotation; `None` = 1.
    pub query_factors: Option<&'a [f32]>,
}

/// Weights of the RMS norms of query and key heads.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct HeadNorms<'a> {
    pub query: &'a [f32],
    pub key: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
    /// The norm follows the rotation (Llama 4) instead of preceding it (Qwen3).
    pub after: bool,
}

/// Rotary positions of the rows.
#[derive(Clone, Copy)]
pub struct Angles<'a> {
    /// For each row, `dims / 2` cosines, then `dims / 2` sines.
    pub cos_sin: &'a [f32],
    /// Numbers at the start of a head that are rotated.
    pub dims: usize,
}

impl Rotation<'_> {
    /// Normalises and rotates one row's `heads` query heads and the key heads after them, of `d`
    /// numbers each.
    fn apply(&self, isa: Isa, rotated: &mut [f32], row: usize, heads: usize, d: usize) {
        let norm = |rotated: &mut [f32], norms: HeadNorms<'_>| {
            for (i, head) in rotated.chunks_exact_mut(d).enumerate() {
                let weight = if i < heads { norms.query } else { norms.key };
                ops::rms_norm_in_place(isa, head, weight, norms.eps);
            }
        };
        if let Some(norms) = self.norms.filter(|n| !n.after) {
            norm(rotated, norms);
        }
        if let Some(Angles { cos_sin, dims }) = self.angles {
            ops::rotate(isa, rotated, d, &cos_sin[row * dims..(row + 1) * dims]);
        }
        if let Some(norms) = self.norms.filter(|n| n.after) {
            norm(rotated, norms);
        }
        if let Some(factors) = self.query_factors {
            ops::scale(isa, &mut rotated[..heads * d], factors[row]);
        }
    }
}

impl Cpu {
    /// Normalises and rotates the query and key heads of each row of `qkv` (queries, keys, values
    /// side by side) in place, and stores keys and values at `places`.
    #[allow(clippy::too_many_arguments)]
    pub fn rotate_and_store(
        &self,
        qkv: &mut [f32],
        heads: usize,
        rotation: &Rotation<'_>,
        places: &[KvPosition],
        layer: usize,
        kv: &mut StepLease<'_>,
    ) {
        let layout = *kv.layout();
        let (d, width) = (
            layout.head_dim,
            (heads + 2 * layout.kv_heads) * layout.head_dim,
        );
        let rows = places.len();
        let fits = |a: &Angles<'_>| a.dims <= d && a.cos_sin.len() >= rows * a.dims;
        assert!(
            qkv.len() >= rows * width
                && rotation.angles.as_ref().is_none_or(fits)
                && rotation.query_factors.is_none_or(|f| f.len() >= rows),
            "rows too short"
        );
        let (qkv, writer) = (SharedSlice::new(qkv), kv.writer());
        let fresh: Vec<usize> = places
            .iter()
            .filter(|p| p.offset == 0)
            .map(|p| p.block)
            .collect();
        // SAFETY: each block is written only by the sequence that owns it, so the fresh blocks are
        // distinct.
        self.rows(
            fresh.len(),
            layout.block_size * layout.kv_heads * d,
            &|i| unsafe { writer.clear(fresh[i], layer) },
        );
        self.rows(rows, width, &|row| {
            // SAFETY: every task has its own rows, and every row has its own place.
            let qkv = unsafe { qkv.slice(row * width, width) };
            let (rotated, v) = qkv.split_at_mut((heads + layout.kv_heads) * d);
            rotation.apply(self.isa(), rotated, row, heads, d);
            let k = &rotated[heads * d..];
            for (head, (k, v)) in k.chunks_exact(d).zip(v.chunks_exact(d)).enumerate() {
                // SAFETY: every row has its own place, and the blocks were cleared before.
                unsafe { writer.store((places[row].block, places[row].offset), layer, head, k, v) };
            }
        });
    }
}
