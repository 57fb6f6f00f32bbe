//! A payload that arrives piece by piece goes straight to where it belongs.

use crate::format::Checksum;

/// The caller's slices, filled front to back; sums what it was given while that is still in the
/// CPU's cache.
pub(super) struct Filling<'a, 'b> {
    into: &'a mut [&'b mut [u8]],
    /// The slice being filled, and how much of it is.
    at: (usize, usize),
    sum: Checksum,
}

impl<'a, 'b> Filling<'a, 'b> {
    pub(super) fn new(into: &'a mut [&'b mut [u8]]) -> Self {
        Self {
            into,
            at: (0, 0),
            sum: Checksum::new(),
        }
    }

    /// Where the next bytes belong; empty when there is no room left.
    pub(super) fn room(&mut self) -> &mut [u8] {
        while self
            .into
            .get(self.at.0)
            .is_some_and(|slice| slice.len() == self.at.1)
        {
            self.at = (self.at.0 + 1, 0);
        }
        match self.into.get_mut(self.at.0) {
            Some(slice) => &mut slice[self.at.1..],
            None => &mut [],
        }
    }

    /// `count` bytes were written to the start of [`Self::room`].
    pub(super) fn advance(&mut self, count: usize) {
        if let Some(slice) = self.into.get(self.at.0) {
            self.sum.update(&slice[self.at.1..self.at.1 + count]);
            self.at.1 += count;
        }
    }

    /// Copies what fits; whether all of it did.
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

    /// Whether all is there, with the checksum `wanted`; what is wrong if not.
    pub(super) fn verify(mut self, wanted: u64) -> Result<(), String> {
        if !self.room().is_empty() {
            return Err("the payload ends early".into());
        }
        if self.sum.value() != wanted {
            return Err("the payload's checksum is wrong".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::checksum;

    proptest! {
        #[test]
        fn pieces_of_any_size_fill_slices_of_any_size(
            lengths in proptest::collection::vec(0_usize..40, 0..6),
            pieces in proptest::collection::vec(1_usize..50, 0..12),
        ) {
            let all = lengths.iter().sum::<usize>();
            let wanted: Vec<u8> = (0..all).map(|at| at as u8 ^ 0x5a).collect();
            let mut slices: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0; length]).collect();
            let mut into: Vec<&mut [u8]> = slices.iter_mut().map(Vec::as_mut_slice).collect();
            let mut filling = Filling::new(&mut into);
            let mut rest = wanted.as_slice();
            for piece in pieces {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                prop_assert!(filling.copy(now));
                rest = later;
            }
            if rest.is_empty() {
                prop_assert!(!filling.copy(b"x"));
                prop_assert_eq!(filling.verify(checksum([wanted.as_slice()])), Ok(()));
                prop_assert_eq!(slices.concat(), wanted);
            } else {
                prop_assert!(filling.verify(0).is_err());
            }
        }
    }

    #[test]
    fn another_checksum_is_an_error() {
        let mut slice = [0; 3];
        let mut into = [slice.as_mut_slice()];
        let mut filling = Filling::new(&mut into);
        assert!(filling.copy(b"abc"));
        assert!(filling.verify(checksum([&b"abd"[..]])).is_err());
    }
}
