//! The decoder beside references: families, formats, ranks, plans.
#![allow(clippy::unwrap_used)]

mod checkpoints;
mod collectives;
mod common;
mod convolutions;
mod damaged_experts;
mod determinism;
mod gguf_types;
mod grammars;
mod latent;
mod llama4;
mod mixtures;
mod parallel;
mod plans;
mod pooling;
mod quantised;
mod reference;
mod routing;
mod sampler;
mod split_files;
mod steps;
mod windows;
