//! Conversion of f32 slices to and from little-endian message bytes.

/// Fills `x` from `bytes`; `None` if the sizes differ.
pub(crate) fn copy_in(bytes: &[u8], x: &mut [f32]) -> Option<()> {
    let (numbers, rest) = bytes.as_chunks::<4>();
    if numbers.len() != x.len() || !rest.is_empty() {
        return None;
    }
    x.iter_mut()
        .zip(numbers)
        .for_each(|(x, b)| *x = f32::from_le_bytes(*b));
    Some(())
}

/// Writes `x` to the start of `bytes`, which must be large enough.
pub(crate) fn copy_out(x: &[f32], bytes: &mut [u8]) {
    let (numbers, _) = bytes.as_chunks_mut::<4>();
    numbers
        .iter_mut()
        .zip(x)
        .for_each(|(b, x)| *b = x.to_le_bytes());
}
