//! Dequantises stored bytes to f32 with the arithmetic of ggml's reference implementation. Each
//! product and sum is rounded to f32 in the order of the block formula, so the results are
//! bit-identical on every machine.

use half::f16;

use crate::DType;

/// Writes the elements stored in `bytes` to `out`.
///
/// # Panics
/// `bytes` is not exactly the storage of `out.len()` elements of `dtype`. Views from
/// [`crate::Checkpoint`] always satisfy this.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        dtype.bytes_for(out.len()),
        Some(bytes.len()),
        "{dtype} storage of {} elements",
        out.len()
    );
    match dtype {
        DType::F32 => blocks(bytes, out, |b: &[u8; 4], y: &mut [f32; 1]| {
            y[0] = f32::from_le_bytes(*b)
        }),
        DType::F16 => blocks(bytes, out, |b: &[u8; 2], y: &mut [f32; 1]| {
            y[0] = f16::from_le_bytes(*b).to_f32()
        }),
        DType::BF16 => blocks(bytes, out, |b: &[u8; 2], y: &mut [f32; 1]| {
            y[0] = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
        }),
        DType::Q8_0 => blocks(bytes, out, q8_0),
        DType::Q4_0 => blocks(bytes, out, q4_0),
        DType::Q4_1 => blocks(bytes, out, q4_1),
        DType::Q5_0 => blocks(bytes, out, q5_0),
        DType::Q5_1 => blocks(bytes, out, q5_1),
        DType::Iq4Nl => blocks(bytes, out, iq4_nl),
        DType::Mxfp4 => blocks(bytes, out, mxfp4),
        DType::U8 => blocks(bytes, out, |b: &[u8; 1], y: &mut [f32; 1]| {
            y[0] = f32::from(b[0]);
        }),
        DType::F8E4M3 => blocks(bytes, out, |b: &[u8; 1], y: &mut [f32; 1]| {
            y[0] = e4m3(b[0])
        }),
        DType::F8E8M0 => blocks(bytes, out, |b: &[u8; 1], y: &mut [f32; 1]| {
            y[0] = e8m0(b[0]);
        }),
        DType::I8 => blocks(bytes, out, |b: &[u8; 1], y: &mut [f32; 1]| {
            y[0] = f32::from(b[0] as i8);
        }),
        DType::I32 => blocks(bytes, out, |b: &[u8; 4], y: &mut [f32; 1]| {
            y[0] = i32::from_le_bytes(*b) as f32;
        }),
        DType::I64 => blocks(bytes, out, |b: &[u8; 8], y: &mut [f32; 1]| {
            y[0] = i64::from_le_bytes(*b) as f32;
        }),
        DType::Q4K => blocks(bytes, out, q4_k),
        DType::Q5K => blocks(bytes, out, q5_k),
        DType::Q6K => blocks(bytes, out, q6_k),
    }
}

/// Scale and minimum codes (0..63) of sub-block `j` (0..8) from the 12 packed bytes of a Q4_K or
/// Q5_K block.
///
/// Bytes 0..4 have the scales and 4..8 the minimums of sub-blocks 0..4 in their low six bits.
/// Sub-blocks 4..8 have their low four bits in bytes 8..12 and their top two bits in the spare bits
/// of the first eight bytes.
pub fn k_scale_min(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        (
            (low & 15) | (packed[j - 4] >> 6 << 4),
            (low >> 4) | (packed[j] >> 6 << 4),
        )
    }
}

/// Runs `convert` over corresponding blocks of `B` bytes and `N` elements.
fn blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    convert: impl Fn(&[u8; B], &mut [f32; N]),
) {
    for (block, elements) in bytes
        .as_chunks::<B>()
        .0
        .iter()
        .zip(out.as_chunks_mut::<N>().0)
    {
        convert(block, elements);
    }
}

/// The f16 at byte `at` of a block.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// OCP's E4M3: 4 exponent bits with bias 7, 3 mantissa bits; all ones is NaN.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    let size = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(i32::from(exponent) - 10),
    };
    if byte & 0x80 == 0 { size } else { -size }
}

/// OCP's E8M0: a power of two with bias 127; the lowest is a subnormal f32.
fn e8m0(exponent: u8) -> f32 {
    match exponent {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(exponent) << 23),
    }
}

fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    for (y, &code) in out.iter_mut().zip(&block[2..]) {
        *y = scale * f32::from(code as i8);
    }
}

fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let (first, second) = out.split_at_mut(16);
    for ((a, b), &pair) in first.iter_mut().zip(second).zip(&block[2..]) {
        *a = scale * (f32::from(pair & 15) - 8.0);
        *b = scale * (f32::from(pair >> 4) - 8.0);
    }
}

fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let (first, second) = out.split_at_mut(16);
    for ((a, b), &pair) in first.iter_mut().zip(second).zip(&block[4..]) {
        *a = scale * f32::from(pair & 15) + min;
        *b = scale * f32::from(pair >> 4) + min;
    }
}

/// Codes of a block of Q5_0 or Q5_1 from its 4 bytes of fifth bits and its 16 bytes of nibbles.
pub fn five_bits(packed: &[u8; 20]) -> [u8; 32] {
    std::array::from_fn(|i| {
        let pair = packed[4 + i % 16];
        let low = if i < 16 { pair & 15 } else { pair >> 4 };
        low | (packed[i / 8] >> (i % 8) & 1) << 4
    })
}

fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let mut packed = [0; 20];
    packed.copy_from_slice(&block[2..]);
    for (y, code) in out.iter_mut().zip(five_bits(&packed)) {
        *y = scale * (f32::from(code) - 16.0);
    }
}

fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, min) = (half_at(block, 0), half_at(block, 2));
    let mut packed = [0; 20];
    packed.copy_from_slice(&block[4..]);
    for (y, code) in out.iter_mut().zip(five_bits(&packed)) {
        *y = scale * f32::from(code) + min;
    }
}

/// Values of the IQ4_NL codes.
pub const IQ4_NL: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half_at(block, 0);
    let (first, second) = out.split_at_mut(16);
    for ((a, b), &pair) in first.iter_mut().zip(second).zip(&block[2..]) {
        *a = scale * f32::from(IQ4_NL[usize::from(pair & 15)]);
        *b = scale * f32::from(IQ4_NL[usize::from(pair >> 4)]);
    }
}

/// Twice the values of the MXFP4 codes, so that all are integers.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    // Half of the power of two, because the table is doubled.
    let scale = f32::exp2(f32::from(block[0]) - 128.0);
    let (first, second) = out.split_at_mut(16);
    for ((a, b), &pair) in first.iter_mut().zip(second).zip(&block[1..]) {
        *a = scale * f32::from(E2M1[usize::from(pair & 15)]);
        *b = scale * f32::from(E2M1[usize::from(pair >> 4)]);
    }
}

/// Scale and minimum of the eight 32-element sub-blocks of a Q4_K or Q5_K block, from its first 16
/// bytes.
fn k_scales(head: &[u8]) -> [(f32, f32); 8] {
    let (scale, min) = (half_at(head, 0), half_at(head, 2));
    let mut packed = [0; 12];
    packed.copy_from_slice(&head[4..16]);
    std::array::from_fn(|j| {
        let (s, m) = k_scale_min(&packed, j);
        (scale * f32::from(s), min * f32::from(m))
    })
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let scales = k_scales(block);
    let codes = block[16..].as_chunks::<32>().0;
    for (i, (pairs, y)) in codes.iter().zip(out.as_chunks_mut::<64>().0).enumerate() {
        let ((s0, m0), (s1, m1)) = (scales[2 * i], scales[2 * i + 1]);
        for (l, &pair) in pairs.iter().enumerate() {
            y[l] = s0 * f32::from(pair & 15) - m0;
            y[l + 32] = s1 * f32::from(pair >> 4) - m1;
        }
    }
}

fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let scales = k_scales(block);
    let high = &block[16..48];
    let codes = block[48..].as_chunks::<32>().0;
    for (i, (pairs, y)) in codes.iter().zip(out.as_chunks_mut::<64>().0).enumerate() {
        let ((s0, m0), (s1, m1)) = (scales[2 * i], scales[2 * i + 1]);
        for (l, &pair) in pairs.iter().enumerate() {
            let fifth = high[l] >> (2 * i);
            y[l] = s0 * f32::from((pair & 15) | ((fifth & 1) << 4)) - m0;
            y[l + 32] = s1 * f32::from((pair >> 4) | ((fifth & 2) << 3)) - m1;
        }
    }
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half_at(block, 208);
    for (n, y) in out.as_chunks_mut::<128>().0.iter_mut().enumerate() {
        let low = &block[64 * n..][..64];
        let high = &block[128 + 32 * n..][..32];
        let scales = &block[192 + 8 * n..][..8];
        for quarter in 0..4 {
            for l in 0..32 {
                let nibble = low[l + 32 * (quarter % 2)] >> (4 * (quarter / 2)) & 15;
                let code = nibble | ((high[l] >> (2 * quarter) & 3) << 4);
                let sub_scale = scale * f32::from(scales[2 * quarter + l / 16] as i8);
                y[32 * quarter + l] = sub_scale * (f32::from(code) - 32.0);
            }
        }
    }
}
