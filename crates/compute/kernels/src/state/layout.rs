//! The layout of state slots: slot -> unit -> layer -> numbers.
//!
//! A slot holds the state of one sequence in all layers of a rank. A unit is the smallest part of a
//! layer's state that a rank can hold. The numbers of one unit in all layers are contiguous, so a
//! transfer to a rank that has other units copies one contiguous range per unit. Numbers are f32.

use std::ops::Range;

/// Shape of a [`super::StateMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLayout {
    /// Number of decoder layers with a state.
    pub layers: usize,
    /// Units per layer on this rank.
    pub units: usize,
    /// Numbers per unit of a layer.
    pub numbers: usize,
}

impl StateLayout {
    /// Bytes per slot.
    pub fn slot_bytes(&self) -> usize {
        size_of::<f32>() * self.units * self.layers * self.numbers
    }

    /// Index in the slot of number `range.start` of a unit of a layer.
    pub(super) fn first(&self, unit: usize, layer: usize, range: &Range<usize>) -> usize {
        assert!(
            unit < self.units
                && layer < self.layers
                && range.start <= range.end
                && range.end <= self.numbers,
            "numbers outside their slot"
        );
        (unit * self.layers + layer) * self.numbers + range.start
    }
}
