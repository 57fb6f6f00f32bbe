//! Kernels of each instruction set beside naive ones.
#![allow(clippy::unwrap_used)]

mod attention;
mod common;
mod experts;
mod latent;
mod leases;
mod matmul;
mod packing;
mod row_scales;
mod rowwise;
mod short_convolution;
mod states;
mod threads;
mod zero_points;
