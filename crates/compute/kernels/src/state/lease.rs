//! A step's lease: the states that its kernels may read and write.

use std::fmt;
use std::sync::Arc;

use super::layout::StateLayout;
use crate::block_memory::{BlockBusy, BlockMemory, PoolHandle};

/// A pool of slots, each with the state of one sequence. Memory is zero, and physical pages are
/// allocated on first write.
///
/// Kernels access slots through a [`StateLease`]; all other access is through a [`PoolHandle`].
pub struct StateMemory {
    layout: StateLayout,
    memory: Arc<BlockMemory>,
    contents: Vec<Contents>,
    /// Slots marked as written by the current lease, or by an earlier one that was leaked (never
    /// dropped).
    written: Vec<usize>,
}

/// The state that the last step wrote to a slot.
#[derive(Clone, Copy, Default)]
struct Contents {
    /// Number of tokens that the state covers; `None` = no completed step has written the slot.
    position: Option<usize>,
    /// [`BlockMemory::loads`] of the slot at that time. If it has changed, a transfer has
    /// overwritten the state.
    loads: u32,
}

/// The state slots of one sequence in a step. A step writes each slot at most once. Only the
/// sequence that writes a slot may also read it, with `from` equal to `to` (update in place).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceStates {
    /// Position of the sequence's first row.
    pub start: usize,
    /// Number of the sequence's rows.
    pub rows: usize,
    /// Slot with the state before the first row; `None` = all zeros.
    pub from: Option<usize>,
    /// Slot for the state after the last row.
    pub to: usize,
    /// Additional states to write: the number of rows that a state covers, ascending within
    /// `1..rows`, and its slot.
    pub saves: Vec<(usize, usize)>,
}

impl SequenceStates {
    /// All states to write: `saves`, then `to` after the last row.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (usize, usize)> {
        let last = (self.rows, self.to);
        self.saves.iter().copied().chain([last])
    }
}

impl StateMemory {
    /// Reserves the memory of `slots` slots.
    pub fn new(layout: StateLayout, slots: usize) -> Self {
        Self {
            layout,
            memory: Arc::new(BlockMemory::new(layout.slot_bytes(), slots)),
            contents: vec![Contents::default(); slots],
            written: Vec::new(),
        }
    }

    pub fn layout(&self) -> &StateLayout {
        &self.layout
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.memory.blocks()
    }

    /// A handle for transfers of single slots.
    pub fn handle(&self) -> PoolHandle {
        PoolHandle::new(Arc::clone(&self.memory))
    }

    /// Leases the slots of a step: exclusively if the step writes them, shared with other readers
    /// otherwise.
    ///
    /// # Errors
    /// A slot of the step is in a conflicting transfer, or a slot to read does not hold the state
    /// at the sequence's start. Nothing is leased.
    ///
    /// # Panics
    /// A slot is outside the memory, is written twice, or is written and read by another sequence;
    /// or a sequence has no rows; or the numbers of rows in `saves` do not ascend within `1..rows`.
    pub fn lease(&mut self, sequences: Vec<SequenceStates>) -> Result<StateLease<'_>, StateError> {
        let lease = StateLease {
            layout: &self.layout,
            memory: &self.memory,
            contents: &mut self.contents,
            written: &mut self.written,
            sequences,
        };
        // Clears the marks of a leaked lease, if there was one.
        lease.memory.end_step(lease.written.drain(..));
        for sequence in &lease.sequences {
            let mut last = 0;
            for (rows, slot) in sequence.outputs() {
                assert!(
                    rows > last,
                    "states after {last} and {rows} rows, not ascending from 1"
                );
                last = rows;
                let fresh = lease.memory.begin_write(slot)?;
                assert!(fresh, "state slot {slot} is written twice");
                lease.written.push(slot);
            }
        }
        lease.begin_reads()?;
        for &slot in lease.written.iter() {
            lease.contents[slot] = Contents {
                position: None,
                loads: lease.memory.loads(slot),
            };
        }
        Ok(lease)
    }
}

/// The slots of one step, leased until dropped. See [`StateMemory::lease`].
pub struct StateLease<'a> {
    layout: &'a StateLayout,
    memory: &'a BlockMemory,
    contents: &'a mut [Contents],
    written: &'a mut Vec<usize>,
    sequences: Vec<SequenceStates>,
}

impl StateLease<'_> {
    pub fn layout(&self) -> &StateLayout {
        self.layout
    }

    /// The sequences of the step, in its order.
    pub fn sequences(&self) -> &[SequenceStates] {
        &self.sequences
    }

    /// Ends the step and records the positions of the states that it has written in all layers.
    /// Without this call, the written slots count as empty.
    pub fn complete(self) {
        for sequence in &self.sequences {
            for (rows, slot) in sequence.outputs() {
                self.contents[slot].position = Some(sequence.start + rows);
            }
        }
    }

    fn begin_reads(&self) -> Result<(), StateError> {
        let sequences = self.sequences.iter();
        let reads: Vec<_> = sequences.filter_map(|s| Some((s, s.from?))).collect();
        for (sequence, from) in &reads {
            let own = sequence.to == *from;
            assert!(
                own || !self.is_written(*from),
                "state slot {from} is written, and read by another sequence"
            );
        }
        let slots = reads.iter().map(|&(_, from)| from as i32).collect();
        // Precedes the position check: from here on, no transfer can change the slots.
        self.memory
            .begin_reads(vec![(Arc::new(slots), 0..reads.len())])?;
        let mut starts = reads.iter().map(|(sequence, from)| (sequence.start, *from));
        starts.try_for_each(|(start, slot)| self.check_position(slot, start))
    }

    /// Checks that a slot has the state after `start` tokens. The position of a state that a
    /// transfer has loaded is unknown and passes the check.
    fn check_position(&self, slot: usize, start: usize) -> Result<(), StateError> {
        let Contents { position, loads } = self.contents[slot];
        if position == Some(start) || loads != self.memory.loads(slot) {
            return Ok(());
        }
        Err(StateError::Position {
            slot,
            start,
            position,
        })
    }

    fn is_written(&self, slot: usize) -> bool {
        assert!(
            slot < self.memory.blocks(),
            "state slot {slot} outside the memory"
        );
        self.memory.is_written_by_step(slot)
    }

    /// Reads a part of the state before the sequence's first row: `out.len()` numbers of a unit of
    /// a layer, from number `first` on.
    ///
    /// # Safety
    /// During the call, no other task writes these numbers of the slot.
    pub(crate) unsafe fn read(
        &self,
        sequence: usize,
        (unit, layer): (usize, usize),
        first: usize,
        out: &mut [f32],
    ) {
        let Some(slot) = self.sequences[sequence].from else {
            out.fill(0.0);
            return;
        };
        let numbers = self.numbers(slot, (unit, layer), first, out.len());
        // SAFETY: in the slot, which the lease reads (`begin_reads`) or writes, so no transfer
        // writes it; nor does another task, as the caller guarantees. `out` is not in the memory.
        unsafe { std::ptr::copy_nonoverlapping(numbers, out.as_mut_ptr(), out.len()) };
    }

    /// Writes `values` to a slot that the step writes: numbers of a unit of a layer, from number
    /// `first` on.
    ///
    /// # Safety
    /// During the call, no other task accesses these numbers of the slot.
    pub(crate) unsafe fn write(
        &self,
        slot: usize,
        (unit, layer): (usize, usize),
        first: usize,
        values: &[f32],
    ) {
        assert!(
            self.is_written(slot),
            "state slot {slot} is not leased for writing"
        );
        let numbers = self.numbers(slot, (unit, layer), first, values.len());
        // SAFETY: in a slot that the lease writes, so no transfer accesses it; nor does another
        // task, as the caller guarantees. `values` is not in the memory.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), numbers, values.len()) };
    }

    /// Pointer to `len` numbers of a slot.
    fn numbers(
        &self,
        slot: usize,
        (unit, layer): (usize, usize),
        first: usize,
        len: usize,
    ) -> *mut f32 {
        assert!(slot < self.memory.blocks(), "outside the memory");
        let at = self.layout.first(unit, layer, &(first..first + len));
        let base = self.memory.base().cast::<f32>();
        // SAFETY: inside a slot of the memory, by the assertions here and in `first`. The base is
        // aligned to a cache line.
        unsafe { base.add(slot * (self.layout.slot_bytes() / size_of::<f32>()) + at) }
    }
}

impl Drop for StateLease<'_> {
    fn drop(&mut self) {
        self.memory.end_step(self.written.drain(..));
    }
}

/// Error: a state that a step needs is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateError {
    /// A slot is in a transfer.
    Busy(BlockBusy),
    /// A slot to read has no state, or a state at another position.
    Position {
        /// The slot.
        slot: usize,
        /// Number of tokens before the sequence's first row.
        start: usize,
        /// Number of tokens that the slot's state covers; `None` = there is no state.
        position: Option<usize>,
    },
}

impl From<BlockBusy> for StateError {
    fn from(busy: BlockBusy) -> Self {
        Self::Busy(busy)
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(busy) => write!(f, "state slots: {busy}"),
            Self::Position {
                slot,
                start,
                position: Some(position),
            } => write!(
                f,
                "state slot {slot} has the state after {position} tokens, not after {start}"
            ),
            Self::Position { slot, .. } => write!(f, "state slot {slot} has no state"),
        }
    }
}

impl std::error::Error for StateError {}
