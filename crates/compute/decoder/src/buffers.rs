//! Buffers of the forward pass and of the output head.

use penstock_kernels::{Activations, Aligned};

use crate::feed_forward::InnerBuffers;
use crate::latent::LatentBuffers;
use crate::model::{Layer, Model};

/// Buffers of the forward pass; they grow to the largest step.
pub(crate) struct Buffers {
    /// Residual stream, rows x hidden.
    pub(crate) x: Aligned<f32>,
    pub(crate) attention: AttentionBuffers,
    pub(crate) inner: InnerBuffers,
    /// Output of a sublayer before its post-norm, rows x hidden.
    pub(crate) branch: Aligned<f32>,
    /// Cosines and sines for each of the model's rotations, rows x rotated dimensions.
    pub(crate) cos_sin: Vec<Aligned<f32>>,
    pub(crate) acts: Activations,
}

/// Buffers of attention layers.
pub(crate) struct AttentionBuffers {
    pub(crate) qkv: Aligned<f32>,
    pub(crate) latent: LatentBuffers,
    /// Input of the output projection. Columns that belong to other ranks stay zero, so no other
    /// mixer may use this buffer.
    pub(crate) attended: Aligned<f32>,
}

impl Default for AttentionBuffers {
    fn default() -> Self {
        Self {
            qkv: Aligned::zeroed(0),
            latent: LatentBuffers::default(),
            attended: Aligned::zeroed(0),
        }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        let empty = || Aligned::zeroed(0);
        Self {
            x: empty(),
            attention: AttentionBuffers::default(),
            inner: InnerBuffers::default(),
            branch: empty(),
            cos_sin: Vec::new(),
            acts: Activations::default(),
        }
    }
}

impl Buffers {
    /// Grows the buffers to `rows` rows.
    pub(crate) fn ensure(&mut self, model: &Model, rows: usize) {
        self.x.ensure(rows * model.spec.hidden);
        let width = |layer: &Layer| layer.mixer.qkv_width();
        let widest = model.layers.iter().map(width).max().unwrap_or(0);
        self.attention.qkv.ensure(rows * widest);
        self.attention.attended.ensure(rows * model.attended.len());
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
