//! Repeats the tests of products, experts and attention with emulated AMX tiles on a CPU without
//! AMX.

#[path = "../tests/suite/attention/mod.rs"]
mod attention;
#[path = "../tests/suite/common/mod.rs"]
mod common;
#[path = "../tests/suite/experts.rs"]
mod experts;
#[path = "../tests/suite/latent.rs"]
mod latent;
#[path = "../tests/suite/matmul.rs"]
mod matmul;
#[path = "../tests/suite/row_scales.rs"]
mod row_scales;
#[path = "../tests/suite/zero_points.rs"]
mod zero_points;
