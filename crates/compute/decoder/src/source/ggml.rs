//! Copies the codes of GGUF's blocks of 32 into the kernels' formats, exactly.

use half::f16;
use penstock_checkpoint::{IQ4_NL, five_bits, k_scale_min};
use penstock_kernels::{GROUP, GroupRow, microscale};

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Unpacks 4-bit codes: the low nibbles are the first half of the codes, the high ones the second.
fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((b, l), h) in bytes.iter().zip(low).zip(high) {
        (*l, *h) = (b & 15, b >> 4);
    }
}

pub(super) fn q8_0(block: &[u8], g: usize, out: &mut GroupRow) {
    out.scales[g] = half_at(block, 0);
    for (code, &q) in out.codes[g * GROUP..(g + 1) * GROUP]
        .iter_mut()
        .zip(&block[2..])
    {
        *code = q ^ 0x80;
    }
}

pub(super) fn q5_0(block: &[u8], g: usize, out: &mut GroupRow) {
    out.scales[g] = half_at(block, 0);
    let mut packed = [0; 20];
    packed.copy_from_slice(&block[2..]);
    let codes = &mut out.codes[g * GROUP..(g + 1) * GROUP];
    for (code, q) in codes.iter_mut().zip(five_bits(&packed)) {
        *code = q + (128 - 16);
    }
}

pub(super) fn iq4_nl(block: &[u8], g: usize, out: &mut GroupRow) {
    out.scales[g] = half_at(block, 0);
    let codes = &mut out.codes[g * GROUP..(g + 1) * GROUP];
    nibbles(&block[2..], codes);
    codes
        .iter_mut()
        .for_each(|code| *code = (IQ4_NL[usize::from(*code)] as u8) ^ 0x80);
}

pub(super) fn mxfp4(block: &[u8], g: usize, out: &mut GroupRow) {
    out.scales[g] = microscale(i32::from(block[0]) - 127);
    nibbles(&block[1..], &mut out.codes[g * GROUP..(g + 1) * GROUP]);
}

pub(super) fn q4_0(block: &[u8], g: usize, out: &mut GroupRow) {
    out.scales[g] = half_at(block, 0);
    nibbles(&block[2..], &mut out.codes[g * GROUP..(g + 1) * GROUP]);
}

pub(super) fn q4_1(block: &[u8], g: usize, out: &mut GroupRow) {
    out.scales[g] = half_at(block, 0);
    out.mins[g] = half_at(block, 2);
    nibbles(&block[4..], &mut out.codes[g * GROUP..(g + 1) * GROUP]);
}

pub(super) fn q4_k(block: &[u8], s: usize, out: &mut GroupRow) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let mut packed = [0u8; 12];
    packed.copy_from_slice(&block[4..16]);
    for j in 0..8 {
        let (scale, min) = k_scale_min(&packed, j);
        out.scales[s * 8 + j] = d * f32::from(scale);
        out.mins[s * 8 + j] = -dmin * f32::from(min);
    }
    for (c, bytes) in block[16..].chunks_exact(32).enumerate() {
        let at = s * 256 + c * 64;
        nibbles(bytes, &mut out.codes[at..at + 64]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_checkpoint::{DType, dequantize};

    /// 8-bit codes, and 4-bit codes less 8, represent the numbers of the block exactly.
    #[test]
    fn blocks_become_codes_of_the_same_numbers() {
        let unpack = [
            (DType::Q8_0, q8_0 as fn(&[u8], usize, &mut GroupRow), 128.0),
            (DType::Q5_0, q5_0, 128.0),
            (DType::Iq4Nl, iq4_nl, 128.0),
            (DType::Q4_0, q4_0, 8.0),
        ];
        for (dtype, unpack, zero) in unpack {
            let bytes = 2 * dtype.block_bytes();
            let mut blocks: Vec<u8> = (0..bytes).map(|i| (i * 89 + i / 7) as u8).collect();
            for block in blocks.chunks_exact_mut(dtype.block_bytes()) {
                block[..2].copy_from_slice(&f16::from_f32(-0.37).to_le_bytes());
            }
            let mut want = vec![0.0; 2 * GROUP];
            dequantize(dtype, &blocks, &mut want);
            let mut row = GroupRow {
                codes: vec![0; 2 * GROUP],
                scales: vec![0.0; 2],
                mins: vec![0.0; 2],
            };
            let each = blocks.chunks_exact(dtype.block_bytes()).enumerate();
            each.for_each(|(g, block)| unpack(block, g, &mut row));
            for (i, want) in want.into_iter().enumerate() {
                let code = f32::from(row.codes[i]) - zero;
                assert_eq!(row.scales[i / GROUP] * code, want, "{dtype} item {i}");
            }
        }
    }
}
