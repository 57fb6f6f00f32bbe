//! Row-wise operations: norms, conversions, activations, rotary positions. One source, compiled for
//! each instruction set.

use crate::activations::{bf16_row, quantize_row};
use crate::isa::Isa;

/// Defines `name(isa, ...)`, which runs `body(...)` compiled for the instruction set.
macro_rules! for_each_isa {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) = $body:path;) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx2($($arg: $ty),*) { $body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
            #[allow(clippy::too_many_arguments)]
            fn avx512($($arg: $ty),*) { $body($($arg),*) }
            match isa.vectors() {
                // SAFETY: every `Isa` in use was checked as available (`Cpu::new` asserts it).
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: every `Isa` in use was checked as available (`Cpu::new` asserts it).
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => $body($($arg),*),
            }
        }
    };
}
pub(crate) use for_each_isa;

for_each_isa! {
    /// `out = x / rms(x) * weight` for one row (RMSNorm, Zhang and Sennrich 2019).
    pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = rms_norm_row;
}
for_each_isa! {
    /// `out = (x - mean(x)) / deviation(x) * weight` for one row (LayerNorm, Ba et al. 2016).
    pub(crate) fn layer_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) = layer_norm_row;
}
for_each_isa! {
    /// [`rms_norm`] in place.
    pub(crate) fn rms_norm_in_place(
        x: &mut [f32], weight: &[f32], eps: f32,
    ) = rms_norm_row_in_place;
}
for_each_isa! {
    fn quantize_generic(
        x: &[f32], codes: &mut [i8], scales: &mut [f32], sums: &mut [f32], offsets: &mut [i32],
    ) = quantize_row;
}
for_each_isa! {
    fn to_bf16_generic(x: &[f32], out: &mut [u16]) = bf16_row;
}
for_each_isa! {
    /// `gate = silu(gate) * up`.
    pub(crate) fn silu_mul(gate: &mut [f32], up: &[f32]) = silu_mul_row;
}
for_each_isa! {
    /// `x = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    pub(crate) fn gelu_tanh(x: &mut [f32]) = gelu_tanh_row;
}
for_each_isa! {
    /// `gate = gelu(gate) * up`, with [`gelu_tanh`].
    pub(crate) fn gelu_mul(gate: &mut [f32], up: &[f32]) = gelu_mul_row;
}
for_each_isa! {
    /// `x = cap * tanh(x * scale / cap)`.
    pub(crate) fn softcap(x: &mut [f32], scale: f32, cap: f32) = softcap_row;
}
for_each_isa! {
    /// `x *= factor`.
    pub(crate) fn scale(x: &mut [f32], factor: f32) = scale_row;
}
for_each_isa! {
    /// `gate = (up + offset) * gate * sigmoid(alpha * gate)`, with `gate` clamped to at most
    /// `limit` and `up` to [-limit, limit].
    pub(crate) fn clamped_mul(
        gate: &mut [f32], up: &[f32], limit: f32, alpha: f32, offset: f32,
    ) = clamped_mul_row;
}
for_each_isa! {
    /// `x += y`.
    pub(crate) fn add(x: &mut [f32], y: &[f32]) = add_row;
}
for_each_isa! {
    /// `x += y * factor`, fused.
    pub(crate) fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) = add_scaled_row;
}
for_each_isa! {
    /// Rotates adjacent heads of `dim` numbers by one row's angles: item i of a head with item i +
    /// half (`cos_sin`: half cosines, then half sines). The rest of the head is unchanged.
    pub(crate) fn rotate(heads: &mut [f32], dim: usize, cos_sin: &[f32]) = rotate_heads;
}

/// See [`quantize_row`].
pub(crate) fn quantize(
    isa: Isa,
    x: &[f32],
    codes: &mut [i8],
    scales: &mut [f32],
    sums: &mut [f32],
    offsets: &mut [i32],
) {
    match isa.vectors() {
        // SAFETY: the instruction set is available.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { crate::ops_avx512::quantize(x, codes, scales, sums, offsets) },
        _ => quantize_generic(isa, x, codes, scales, sums, offsets),
    }
}

/// Rounds a row to bf16, zero-padded.
pub(crate) fn to_bf16(isa: Isa, x: &[f32], out: &mut [u16]) {
    match isa.vectors() {
        // SAFETY: the instruction set is available.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { crate::ops_avx512::to_bf16(x, out) },
        _ => to_bf16_generic(isa, x, out),
    }
}

/// Reduces `x` with `term(lane, item)` in 16 lanes, then sums the lanes.
#[inline(always)]
fn lane_sum(x: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let chunks = x.chunks_exact(16);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..16 {
            lanes[i] = term(lanes[i], chunk[i]);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(rest) {
        *lane = term(*lane, *v);
    }
    lanes.iter().sum()
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let squares = lane_sum(x, |sum, v| v.mul_add(v, sum));
    1.0 / (squares / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn layer_norm_row(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let mean = lane_sum(x, |sum, v| sum + v) / x.len() as f32;
    let squares = lane_sum(x, |sum, v| (v - mean).mul_add(v - mean, sum));
    let scale = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
        *o = (v - mean) * scale * w;
    }
}

#[inline(always)]
fn rms_norm_row(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let scale = inverse_rms(x, eps);
    for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
        *o = v * scale * w;
    }
}

#[inline(always)]
fn rms_norm_row_in_place(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = inverse_rms(x, eps);
    for (v, w) in x.iter_mut().zip(weight) {
        *v *= scale * w;
    }
}

#[inline(always)]
fn silu_mul_row(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + exp(-*g)) * u;
    }
}

/// `(1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))`.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    const SLOPE: f32 = -2.0 * 0.797_884_6;
    let u = SLOPE * x * (x * x).mul_add(0.044_715, 1.0);
    x / (1.0 + exp(u))
}

#[inline(always)]
fn gelu_tanh_row(x: &mut [f32]) {
    x.iter_mut().for_each(|x| *x = gelu(*x));
}

#[inline(always)]
fn gelu_mul_row(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = gelu(*g) * u;
    }
}

/// `tanh(u) = 1 - 2 / (1 + e^(2u))`.
#[inline(always)]
fn softcap_row(x: &mut [f32], scale: f32, cap: f32) {
    let double = 2.0 * scale / cap;
    for x in x {
        *x = cap - 2.0 * cap / (1.0 + exp(*x * double));
    }
}

#[inline(always)]
fn scale_row(x: &mut [f32], factor: f32) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Clamps with comparisons, so that NaN stays NaN: a minimum would replace NaN by the limit.
#[inline(always)]
fn clamped_mul_row(gate: &mut [f32], up: &[f32], limit: f32, alpha: f32, offset: f32) {
    for (g, u) in gate.iter_mut().zip(up) {
        let bounded = if *g > limit { limit } else { *g };
        let up = u.clamp(-limit, limit) + offset;
        *g = bounded / (1.0 + exp(-alpha * bounded)) * up;
    }
}

#[inline(always)]
fn add_row(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

#[inline(always)]
fn add_scaled_row(x: &mut [f32], y: &[f32], factor: f32) {
    let add = |(x, y): (&mut f32, &f32)| *x = y.mul_add(factor, *x);
    x.iter_mut().zip(y).for_each(add);
}

#[inline(always)]
fn rotate_heads(heads: &mut [f32], dim: usize, cos_sin: &[f32]) {
    let (cos, sin) = cos_sin.split_at(cos_sin.len() / 2);
    for head in heads.chunks_exact_mut(dim) {
        let (a, b) = head[..cos_sin.len()].split_at_mut(cos.len());
        for i in 0..cos.len() {
            let (x, y) = (a[i], b[i]);
            a[i] = x * cos[i] - y * sin[i];
            b[i] = y * cos[i] + x * sin[i];
        }
    }
}

/// e^x to about 2 ulp on [-87, 88], clamped outside: Cody-Waite reduction (ln 2 in two parts) and
/// the Taylor polynomial of degree 6 on |r| <= ln(2) / 2.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    // 1.5 * 2^23: the low mantissa bits of the sum are the nearest integer.
    let shifted = x.mul_add(std::f32::consts::LOG2_E, 12_582_912.0);
    let n = shifted - 12_582_912.0;
    let r = n.mul_add(2.121_944_4e-4, n.mul_add(-0.693_359_4, x));
    poly(r) * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

#[inline(always)]
fn poly(r: f32) -> f32 {
    let mut p = 1.0 / 720.0f32;
    p = p.mul_add(r, 1.0 / 120.0);
    p = p.mul_add(r, 1.0 / 24.0);
    p = p.mul_add(r, 1.0 / 6.0);
    p = p.mul_add(r, 0.5);
    p = p.mul_add(r, 1.0);
    p.mul_add(r, 1.0)
}

/// Taylor coefficients of 2^r, from r^6 down to r.
pub(crate) const EXP2: [f32; 6] = [
    1.540_353e-4,
    1.333_355_8e-3,
    9.618_129e-3,
    5.550_411e-2,
    0.240_226_5,
    std::f32::consts::LN_2,
];

/// 2^x for x <= 0, to about 2 ulp, at least 2^-126. Splits x into the nearest integer and a
/// remainder, and evaluates a polynomial in the remainder.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let x = x.max(-126.0);
    let shifted = x + 12_582_912.0;
    let r = x - (shifted - 12_582_912.0);
    let p = EXP2[1..]
        .iter()
        .fold(EXP2[0], |p, &c| p.mul_add(r, c))
        .mul_add(r, 1.0);
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// Asserts that the CPU has `isa`; the kernels' safety relies on it.
pub(crate) fn assert_available(isa: Isa) {
    assert!(isa.available(), "this CPU lacks {isa}");
}
