//! Words of 32 bits that hold several small integers.

use penstock_checkpoint::{DType, TensorView};

/// Position in an AWQ word of each of eight adjacent columns. Source: autoawq 0.2.9, gemm.
pub(super) const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Word `at` of little-endian words.
pub(super) fn word_at(bytes: &[u8], at: usize) -> u32 {
    let word = &bytes[4 * at..4 * at + 4];
    u32::from_le_bytes([word[0], word[1], word[2], word[3]])
}

/// Unpacks a word's codes of 4 or 8 bits, the lowest first.
pub(super) fn spread(word: u32, bits: usize, out: &mut [u8]) {
    if bits == 8 {
        return out.copy_from_slice(&word.to_le_bytes());
    }
    for (i, code) in out.iter_mut().enumerate() {
        *code = (word >> (4 * i)) as u8 & 15;
    }
}

/// The numbers of a tensor of integers; empty for other types.
pub(super) fn integers(view: &TensorView<'_>) -> Vec<i64> {
    match view.dtype {
        DType::I32 => {
            let words = view.data.as_chunks::<4>().0.iter();
            words.map(|word| i32::from_le_bytes(*word).into()).collect()
        }
        DType::I64 => {
            let words = view.data.as_chunks::<8>().0.iter();
            words.map(|word| i64::from_le_bytes(*word)).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that compressed-tensors 0.20 writes for -8, -7, -1, 0, 1, 2, 6, 7 in 4 bits, and for
    /// -128, -1, 0, 127 in 8.
    #[test]
    fn codes_are_the_lowest_first() {
        let mut codes = [0; 8];
        spread(-22_444_272_i32 as u32, 4, &mut codes);
        assert_eq!(codes, [0, 1, 7, 8, 9, 10, 14, 15]);
        let mut codes = [0; 4];
        spread(0xff80_7f00, 8, &mut codes);
        assert_eq!(codes.map(|code| i32::from(code) - 128), [-128, -1, 0, 127]);
    }

    /// AWQ's word for the columns 0 to 7.
    #[test]
    fn columns_have_their_places() {
        let places = AWQ_PLACES.map(|place| 0x7531_6420 >> (4 * place) & 15);
        assert_eq!(places, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
