//! Dequantisation compared with vectors from the `gguf` Python package
//! (tests/fixtures/make_dequant_vectors.py).
use std::path::{Path, PathBuf};

use penstock_checkpoint::{DType, dequantize, k_scale_min};

fn fixture(name: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../tests/fixtures/dequant")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_type_matches_the_reference_bit_for_bit() {
    for dtype in DType::ALL {
        let stored = fixture(&format!("{dtype}.stored"));
        let expected: Vec<f32> = fixture(&format!("{dtype}.f32"))
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let mut values = vec![f32::NAN; expected.len()];
        dequantize(dtype, &stored, &mut values);
        for (i, (ours, theirs)) in values.iter().zip(&expected).enumerate() {
            assert!(
                ours == theirs,
                "{dtype} element {i}: {ours} instead of {theirs}"
            );
        }
    }
}

#[test]
fn packed_scales_unpack_to_six_bits() {
    // Sub-block j has scale 5j+1 and minimum 63-5j, packed manually.
    let (scales, mins): (Vec<u8>, Vec<u8>) = (0..8).map(|j| (5 * j + 1, 63 - 5 * j)).unzip();
    let mut packed = [0u8; 12];
    for j in 0..4 {
        packed[j] = scales[j] | (scales[j + 4] >> 4 << 6);
        packed[j + 4] = mins[j] | (mins[j + 4] >> 4 << 6);
        packed[j + 8] = (scales[j + 4] & 15) | (mins[j + 4] << 4);
    }
    for j in 0..8 {
        assert_eq!(
            k_scale_min(&packed, j),
            (scales[j], mins[j]),
            "sub-block {j}"
        );
    }
}

#[test]
fn sizes_are_whole_blocks() {
    assert_eq!(DType::Q4_1.bytes_for(576), Some(360));
    assert_eq!(DType::Q4_1.bytes_for(577), None);
    assert_eq!(
        DType::Q6K.bytes_for(usize::MAX - 255),
        Some((usize::MAX - 255) / 256).and_then(|n| n.checked_mul(210))
    );
    assert_eq!(DType::F32.bytes_for(usize::MAX), None);
}

#[test]
#[should_panic(expected = "Q8_0 storage of 32 elements")]
fn wrong_lengths_are_a_callers_bug() {
    dequantize(DType::Q8_0, &[0; 33], &mut [0.0; 32]);
}
