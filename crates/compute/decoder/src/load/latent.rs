//! Loads latent attention weights: the down projections, and per head of this rank the "absorbed"
//! matrices, which map queries into the latent space and latents back to values.

use std::ops::Range;

use penstock_kernels::{GroupRow, Latent, Packed, RowSource, WeightFormat};

use super::attention::times;
use super::{Loader, Part, role};
use crate::error::DecoderError;
use crate::model::LatentProjections;
use crate::options::Numerics;
use crate::recipe::{LayerRecipes, Recipe};
use crate::source::MatrixRows;
use crate::spec::LatentSpec;

/// A transposed matrix.
struct Transposed {
    /// Row-major values before the transposition.
    values: Vec<f32>,
    columns: usize,
}

impl Transposed {
    /// Reads a matrix of `rows` x `columns`.
    fn of(source: &MatrixRows<'_>, rows: usize, columns: usize) -> Result<Self, DecoderError> {
        let mut values = vec![0.0; rows * columns];
        let each = values.chunks_exact_mut(columns).enumerate();
        each.for_each(|(row, out)| source.fill_f32(row, out));
        source.check()?;
        Ok(Self { values, columns })
    }
}

impl RowSource for Transposed {
    fn fill_f32(&self, row: usize, out: &mut [f32]) {
        let column = self.values.iter().skip(row).step_by(self.columns);
        out.iter_mut().zip(column).for_each(|(out, v)| *out = *v);
    }

    fn fill_groups(&self, _: WeightFormat, _: usize, _: &mut GroupRow) -> bool {
        false
    }
}

fn some_rows(recipe: &Recipe, rows: Range<usize>) -> Recipe {
    let rows = Some([rows.start, rows.end]);
    Recipe {
        rows,
        ..recipe.clone()
    }
}

impl Loader<'_> {
    pub(super) fn latent_projections(
        &self,
        a: &LatentSpec,
        weights: &LayerRecipes,
    ) -> Result<LatentProjections, DecoderError> {
        let (own, head) = (self.shard.query_heads(), a.plain_dim + a.rope_dim);
        let part = |recipe, whole, own| Part {
            recipe,
            bias: None,
            whole,
            own,
        };
        let queries = part(
            role("q", &weights.q)?,
            a.heads * head,
            times(own.clone(), head),
        );
        let kv = a.kv_rank + a.rope_dim;
        let latent = part(role("kv_a", &weights.kv_a)?, kv, 0..kv);
        let norm = |name, recipe, n| self.norm(&a.norm, role(name, recipe)?, None, n);
        let (first, q_b) = match a.query_rank {
            None => (queries, None),
            Some(rank) => {
                let norm = norm("q_a_norm", &weights.q_a_norm, rank)?;
                let q_b = self.outputs(&[queries], rank)?;
                let q_a = part(role("q_a", &weights.q_a)?, rank, 0..rank);
                (q_a, Some((norm, q_b)))
            }
        };
        if let Some(kv_b) = &weights.kv_b {
            let rows = a.heads * (a.plain_dim + a.value_dim);
            MatrixRows::open(self.tensors, kv_b, rows, a.kv_rank)?;
        }
        Ok(LatentProjections {
            shape: Latent {
                heads: own.len(),
                plain: a.plain_dim,
                rope: a.rope_dim,
                rank: a.kv_rank,
            },
            down: self.outputs(&[first, latent], self.spec.hidden)?,
            q_b,
            norm: norm("kv_a_norm", &weights.kv_a_norm, a.kv_rank)?,
            k_b: own
                .clone()
                .map(|head| self.key_matrix(a, weights, head))
                .collect::<Result<_, _>>()?,
            v_b: own
                .map(|head| self.value_matrix(a, weights, head))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Matrix from a head's query into the latent space: the transpose of the head's key matrix.
    fn key_matrix(
        &self,
        a: &LatentSpec,
        weights: &LayerRecipes,
        head: usize,
    ) -> Result<Packed, DecoderError> {
        let (n, k) = (a.kv_rank, a.plain_dim);
        if let Some(stack) = &weights.k_b {
            let recipe = stack.clone().of_expert(head);
            let rows = MatrixRows::open(self.tensors, &recipe, n, k)?;
            return self.pack(self.numerics.form(rows.native()), n, k, &rows);
        }
        let first = head * (k + a.value_dim);
        let keys = some_rows(role("kv_b", &weights.kv_b)?, first..first + k);
        let rows = MatrixRows::open(self.tensors, &keys, k, n)?;
        // Groups of stored codes share a scale along the dimension that the transposition
        // exchanges, so the codes are requantised, to 8 bits.
        let form = match self.numerics {
            Numerics::AsStored { .. } if rows.is_quantised() => WeightFormat::W8,
            numerics => numerics.form(rows.native()),
        };
        let turned = Transposed::of(&rows, k, n)?;
        Ok(Packed::pack(self.cpu.threads(), form, n, k, &turned))
    }

    /// Matrix from the latent space to a head's value.
    fn value_matrix(
        &self,
        a: &LatentSpec,
        weights: &LayerRecipes,
        head: usize,
    ) -> Result<Packed, DecoderError> {
        let (n, k) = (a.value_dim, a.kv_rank);
        let recipe = match &weights.v_b {
            Some(stack) => stack.clone().of_expert(head),
            None => {
                let first = head * (a.plain_dim + n) + a.plain_dim;
                some_rows(role("kv_b", &weights.kv_b)?, first..first + n)
            }
        };
        let rows = MatrixRows::open(self.tensors, &recipe, n, k)?;
        self.pack(self.numerics.form(rows.native()), n, k, &rows)
    }
}
