//! Hand-written row-wise operations for AVX-512, bit for bit equal to those in `ops` and
//! `activations`.

use std::arch::x86_64::*;

use crate::packed::GROUP;

/// Like `activations::quantize_row`.
///
/// # Safety
/// The CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
pub(crate) unsafe fn quantize(
    x: &[f32],
    codes: &mut [i8],
    scales: &mut [f32],
    scaled_sums: &mut [f32],
    offsets: &mut [i32],
) {
    let groups = scales.len();
    assert!(
        codes.len() == groups * GROUP && scaled_sums.len() == groups && offsets.len() == groups
    );
    let mut padded = [0.0f32; GROUP];
    for g in 0..groups {
        let start = (g * GROUP).min(x.len());
        let mut group = x[start..].as_ptr();
        if x.len() - start < GROUP {
            padded[..x.len() - start].copy_from_slice(&x[start..]);
            group = padded.as_ptr();
        }
        // SAFETY: `group` has 32 items, `codes` has 32 for each group.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(group), _mm512_loadu_ps(group.add(16)));
            let max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
            let inverse = _mm512_set1_ps(if max > 1e-30 { 127.0 / max } else { 0.0 });
            let low = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
            let high = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
            let out = codes.as_mut_ptr().add(g * GROUP);
            _mm_storeu_si128(out.cast(), _mm512_cvtepi32_epi8(low));
            _mm_storeu_si128(out.add(16).cast(), _mm512_cvtepi32_epi8(high));
            let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
            let scale = max / 127.0;
            scales[g] = scale;
            scaled_sums[g] = scale * sum as f32;
            offsets[g] = -128 * sum;
        }
    }
}

/// Like `activations::bf16_row`, except that subnormal numbers become zero, as in the dot-product
/// instruction.
///
/// # Safety
/// The CPU has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) unsafe fn to_bf16(x: &[f32], out: &mut [u16]) {
    let len = x.len().min(out.len());
    let mut at = 0;
    while at < len {
        let keep = ((1u32 << (len - at).min(16)) - 1) as __mmask16;
        // SAFETY: the masked lanes are in both slices; the transmute reinterprets 32 bytes.
        unsafe {
            let rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(keep, x.as_ptr().add(at)));
            let rounded: __m256i = std::mem::transmute(rounded);
            _mm256_mask_storeu_epi16(out.as_mut_ptr().add(at).cast(), keep, rounded);
        }
        at += 16;
    }
    out[len..].fill(0);
}
