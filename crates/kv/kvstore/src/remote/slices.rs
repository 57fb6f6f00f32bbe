//! Receives a part in pieces, directly into its destination.

use super::names::Names;
use crate::format::{Checksum, HEADER_BYTES, HeaderPage};
use crate::key::PartKey;

/// Destination of a part: the header followed by the caller's slices, filled in order. The payload
/// is checksummed while it is in the CPU cache.
pub(super) struct Filling<'a, 'b> {
    header: HeaderPage,
    into: &'a mut [&'b mut [u8]],
    /// Index of the current buffer (0: the header, then the slices) and its filled length.
    at: (usize, usize),
    sum: Checksum,
}

impl<'a, 'b> Filling<'a, 'b> {
    pub(super) fn new(into: &'a mut [&'b mut [u8]]) -> Self {
        Self {
            header: [0; HEADER_BYTES],
            into,
            at: (0, 0),
            sum: Checksum::new(),
        }
    }

    fn length(&self, slice: usize) -> Option<usize> {
        match slice.checked_sub(1) {
            None => Some(HEADER_BYTES),
            Some(at) => self.into.get(at).map(|slice| slice.len()),
        }
    }

    /// The free space for the next bytes; empty when full.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let (mut slice, mut from) = self.at;
        while self.length(slice) == Some(from) {
            (slice, from) = (slice + 1, 0);
        }
        self.at = (slice, from);
        match slice.checked_sub(1) {
            None => &mut self.header[from..],
            Some(at) => self
                .into
                .get_mut(at)
                .map_or(&mut [], |slice| &mut slice[from..]),
        }
    }

    /// Records `count` bytes written to the start of [`Self::room`].
    pub(super) fn advance(&mut self, count: usize) {
        let (slice, from) = self.at;
        if slice > 0 {
            self.sum.update(&self.into[slice - 1][from..from + count]);
        }
        self.at.1 += count;
    }

    /// Copies as many bytes as fit; returns whether all of them did.
    pub(super) fn copy(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let room = self.room();
            let count = room.len().min(bytes.len());
            if count == 0 {
                return false;
            }
            room[..count].copy_from_slice(&bytes[..count]);
            self.advance(count);
            bytes = &bytes[count..];
        }
        true
    }

    /// Verifies that the part `key` is complete; the error describes the problem.
    pub(super) fn verify(mut self, names: &Names, key: &PartKey) -> Result<(), String> {
        if !self.room().is_empty() {
            return Err("the payload ends early".into());
        }
        let payload = self.into.iter().map(|slice| slice.len()).sum();
        names.verify(&self.header, key, (payload, self.sum.value()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::StoreIdentity;

    const KEY: PartKey = PartKey {
        digest: [1; 32],
        blocks: 1,
        head: 0,
        layers: (0, 1),
    };

    fn names() -> Names {
        Names::new(&StoreIdentity {
            cache: String::new(),
            layers: 1,
            kv_heads: 1,
            block_tokens: 16,
            tile_bytes: 1,
            dtype: "bf16".into(),
        })
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_fill_slices_of_any_size(
            lengths in proptest::collection::vec(0_usize..40, 0..6),
            pieces in proptest::collection::vec(1_usize..6000, 0..12),
        ) {
            let all = lengths.iter().sum::<usize>();
            let wanted: Vec<u8> = (0..all).map(|at| at as u8 ^ 0x5a).collect();
            let mut slices: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0; length]).collect();
            let mut into: Vec<&mut [u8]> = slices.iter_mut().map(Vec::as_mut_slice).collect();
            let mut filling = Filling::new(&mut into);
            let value = [&names().header(&KEY, &wanted, None)[..], &wanted].concat();
            let mut rest = value.as_slice();
            for piece in pieces {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                prop_assert!(filling.copy(now));
                rest = later;
            }
            if rest.is_empty() {
                prop_assert!(!filling.copy(b"x"));
                prop_assert_eq!(filling.verify(&names(), &KEY), Ok(()));
                prop_assert_eq!(slices.concat(), wanted);
            } else {
                prop_assert!(filling.verify(&names(), &KEY).is_err());
            }
        }
    }

    #[test]
    fn another_checksum_is_an_error() {
        let mut slice = [0; 3];
        let mut into = [slice.as_mut_slice()];
        let mut filling = Filling::new(&mut into);
        assert!(filling.copy(&names().header(&KEY, b"abd", None)) && filling.copy(b"abc"));
        assert!(filling.verify(&names(), &KEY).is_err());
    }
}
