//! Buffers of the forward pass and of the output head.

use penstock_kernels::{Activations, Aligned};

use crate::feed_forward::InnerBuffers;
use crate::latent::LatentBuffers;
use crate::model::{Layer, Model};

/// Buffers of the forward pass; they grow to the largest step.
pub(crate) struct Buffers {
    /// Residual stream, rows x hidden.
    pub(crate) x: Aligned<f32>,
    pub(crate) qkv: Aligned<f32>,
    pub(crate) latent: LatentBuffers,
    pub(crate) attended: Aligned<f32>,
    pub(crate) inner: InnerBuffers,
    /// Output of a sublayer before its post-norm, rows x hidden.
    pub(crate) branch: Aligned<f32>,
    /// Cosines and sines for each of the model's rotations, rows x rotated dimensions.
    pub(crate) cos_sin: Vec<Aligned<f32>>,
    pub(crate) acts: Activations,
}

impl Default for Buffers {
    fn default() -> Self {
        let empty = || Aligned::zeroed(0);
        Self {
            x: empty(),
            qkv: empty(),
            latent: LatentBuffers::default(),
            attended: empty(),
            inner: InnerBuffers::default(),
            branch: empty(),
            cos_sin: Vec::new(),
            acts: Activations::default(),
        }
    }
}

impl Buffers {
    /// Grows the buffers to `rows` rows. Columns of `attended` that belong to other ranks stay
    /// zero.
    pub(crate) fn ensure(&mut self, model: &Model, rows: usize) {
        self.x.ensure(rows * model.spec.hidden);
        let width = |layer: &Layer| layer.attention.width();
        let widest = model.layers.iter().map(width).max().unwrap_or(0);
        self.qkv.ensure(rows * widest);
        self.attended.ensure(rows * model.attended.len());
        let ropes = model.ropes.len();
        self.cos_sin.resize_with(ropes, || Aligned::zeroed(0));
        for (cos_sin, rope) in self.cos_sin.iter_mut().zip(&model.ropes) {
            cos_sin.ensure(rows * rope.dims());
        }
    }
}

/// Buffers of the output head.
pub(crate) struct HeadBuffers {
    pub(crate) rows: Aligned<f32>,
    pub(crate) logits: Aligned<f32>,
}

impl Default for HeadBuffers {
    fn default() -> Self {
        Self {
            rows: Aligned::zeroed(0),
            logits: Aligned::zeroed(0),
        }
    }
}
