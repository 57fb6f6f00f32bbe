//! Exchange of equally sized buffers (parts), one per rank, in a tensor-parallel group: the basis
//! of all-reduce and gather.
//!
//! ```text
//! header | counter of rank 0, 1, ... | rank 0: part even, part odd | rank 1: ... | ...
//! ```
//!
//! In exchange n every rank fills its part n % 2, sets its counter to n and waits until the
//! counters of all other ranks reach n. Two parts per rank are enough: a rank fills its part of
//! exchange n + 2 only after all counters have reached n + 1, and a rank sets its counter to n + 1
//! only after it has read all parts of exchange n.

use std::path::Path;
use std::time::Duration;

use crate::counter::Counter;
use crate::error::{CommError, GroupError};
use crate::memory::{HEADER, LINE, Memory};

/// One rank's view of its group.
pub struct Group {
    memory: Memory,
    rank: usize,
    ranks: usize,
    capacity: usize,
    exchanges: u32,
    patience: Duration,
}

impl Group {
    /// Creates the shared memory of `ranks` ranks with parts of up to `capacity` f32 numbers.
    ///
    /// # Errors
    /// The file exists or cannot be created.
    pub fn create(path: &Path, ranks: usize, capacity: usize) -> Result<(), CommError> {
        Memory::create(path, size(ranks, capacity), &shape(ranks, capacity)).map(drop)
    }

    /// Joins the group at `path` as `rank`. A wait for another rank ends with an error after
    /// `patience`.
    ///
    /// # Errors
    /// The file is missing or has a different shape.
    ///
    /// # Panics
    /// `rank` is not below `ranks`.
    pub fn join(
        path: &Path,
        rank: usize,
        ranks: usize,
        capacity: usize,
        patience: Duration,
    ) -> Result<Self, CommError> {
        assert!(rank < ranks, "rank {rank} of {ranks}");
        let memory = Memory::open(path, size(ranks, capacity), &shape(ranks, capacity))?;
        Ok(Self {
            memory,
            rank,
            ranks,
            capacity,
            exchanges: 0,
            patience,
        })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Buffer for this rank's part of the next exchange. Its initial contents are unspecified.
    pub fn part(&mut self) -> &mut [f32] {
        let offset = self.offset(self.rank, self.exchanges.wrapping_add(1));
        // SAFETY: only this rank writes its parts. The other ranks' counters show that they have
        // finished the exchange that last used this part, so none of them still reads it.
        unsafe { self.memory.floats(offset, self.capacity) }
    }

    /// Publishes this rank's part and waits for the parts of the other ranks.
    ///
    /// # Errors
    /// The group was ended, or a rank did not answer in time.
    pub fn exchange(&mut self) -> Result<Parts<'_>, GroupError> {
        self.exchanges = self.exchanges.wrapping_add(1);
        self.counter(self.rank).set(&self.memory, self.exchanges);
        for rank in (0..self.ranks).filter(|&r| r != self.rank) {
            self.counter(rank)
                .wait(&self.memory, self.exchanges, rank, self.patience)?;
        }
        Ok(Parts { group: self })
    }

    /// Ends the group: every pending and later wait of every rank fails with `reason`.
    pub fn end(&self, reason: &str) {
        self.memory.end(reason);
    }

    fn counter(&self, rank: usize) -> Counter {
        Counter::at(HEADER + rank * LINE)
    }

    fn offset(&self, rank: usize, exchange: u32) -> usize {
        let parity = (exchange % 2) as usize;
        parts_at(self.ranks) + (2 * rank + parity) * part_bytes(self.capacity)
    }
}

/// The parts of all ranks in one exchange, unchanged until this rank's next exchange.
pub struct Parts<'a> {
    group: &'a Group,
}

impl Parts<'_> {
    /// The first `len` numbers of a rank's part.
    pub fn of(&self, rank: usize, len: usize) -> &[f32] {
        let group = self.group;
        assert!(
            rank < group.ranks && len <= group.capacity,
            "part of rank {rank}, {len} numbers"
        );
        let offset = group.offset(rank, group.exchanges);
        // SAFETY: the rank raised its counter after filling the part, and fills it again only after
        // this rank's next exchange.
        unsafe { group.memory.floats(offset, len) }
    }
}

fn part_bytes(capacity: usize) -> usize {
    (capacity * 4).next_multiple_of(4096)
}

fn parts_at(ranks: usize) -> usize {
    (HEADER + ranks * LINE).next_multiple_of(4096)
}

fn size(ranks: usize, capacity: usize) -> usize {
    parts_at(ranks) + 2 * ranks * part_bytes(capacity)
}

fn shape(ranks: usize, capacity: usize) -> String {
    format!("penstock group 1: {ranks} ranks, parts of {capacity}")
}
