//! Repeats the tests of products, experts and attention with emulated tiles if the CPU has none.
#![allow(clippy::duplicate_mod)] // Each file includes the common one.

#[path = "../tests/attention/main.rs"]
mod attention;
#[path = "../tests/experts.rs"]
mod experts;
#[path = "../tests/latent.rs"]
mod latent;
#[path = "../tests/matmul.rs"]
mod matmul;
