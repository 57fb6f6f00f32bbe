//! The tests of products, experts and attention once more: in this build tiles that the CPU lacks
//! are emulated.
#![allow(clippy::duplicate_mod)] // Each of the files has the common one.

#[path = "../tests/attention/main.rs"]
mod attention;
#[path = "../tests/experts.rs"]
mod experts;
#[path = "../tests/latent.rs"]
mod latent;
#[path = "../tests/matmul.rs"]
mod matmul;
