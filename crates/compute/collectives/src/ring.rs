//! Ordered messages from one rank to one or more other ranks.
//!
//! ```text
//! header | counter written | counter read of reader 0, 1, ... | slot 0: u64 length, bytes | ...
//! ```
//!
//! Message n is in slot n % slots. The writer reuses a slot only after every reader has read the
//! slot's previous message, n - slots. A reader copies message n or reads it in place, then
//! increments its counter.

use std::path::Path;
use std::time::Duration;

use crate::counter::Counter;
use crate::error::{CommError, GroupError};
use crate::memory::{HEADER, LINE, Memory};

struct Ring {
    memory: Memory,
    readers: usize,
    slots: usize,
    capacity: usize,
}

impl Ring {
    fn open(path: &Path, readers: usize, slots: usize, capacity: usize) -> Result<Self, CommError> {
        let memory = Memory::open(
            path,
            size(readers, slots, capacity),
            &shape(readers, slots, capacity),
        )?;
        Ok(Self {
            memory,
            readers,
            slots,
            capacity,
        })
    }

    fn written(&self) -> Counter {
        Counter::at(HEADER)
    }

    fn read(&self, reader: usize) -> Counter {
        Counter::at(HEADER + (1 + reader) * LINE)
    }

    fn slot(&self, message: u32) -> usize {
        slots_at(self.readers) + (message as usize % self.slots) * slot_bytes(self.capacity)
    }
}

/// The sending end.
pub struct Writer {
    ring: Ring,
    sent: u32,
    patience: Duration,
}

impl Writer {
    /// Creates the shared memory: up to `slots` (a power of two) messages of up to `capacity` bytes
    /// in flight to `readers` readers.
    ///
    /// # Errors
    /// The file exists or cannot be created.
    pub fn create(
        path: &Path,
        readers: usize,
        slots: usize,
        capacity: usize,
    ) -> Result<(), CommError> {
        // Message numbers wrap at 2^32. The slots stay in order only if their number divides 2^32.
        assert!(slots.is_power_of_two(), "{slots} slots");
        Memory::create(
            path,
            size(readers, slots, capacity),
            &shape(readers, slots, capacity),
        )
        .map(drop)
    }

    /// Opens the sending end of the ring at `path`. A wait for readers fails after `patience`.
    ///
    /// # Errors
    /// The file is missing or has a different shape.
    pub fn open(
        path: &Path,
        readers: usize,
        slots: usize,
        capacity: usize,
        patience: Duration,
    ) -> Result<Self, CommError> {
        let ring = Ring::open(path, readers, slots, capacity)?;
        Ok(Self {
            ring,
            sent: 0,
            patience,
        })
    }

    /// Sends a message that `fill` writes to the slot; `fill` returns its length in bytes. Waits
    /// while every slot holds a message that a reader has not read yet.
    ///
    /// # Errors
    /// The ring was ended, or a reader freed no slot for longer than the patience.
    pub fn send_with(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> Result<(), GroupError> {
        let (ring, next) = (&self.ring, self.sent.wrapping_add(1));
        let free = next.wrapping_sub(ring.slots as u32);
        for reader in 0..ring.readers {
            ring.read(reader)
                .wait(&ring.memory, free, reader, self.patience)?;
        }
        let at = ring.slot(next);
        // SAFETY: all readers are past the slot's previous message, and read the slot again only
        // after `written` is incremented.
        let slot = unsafe { ring.memory.bytes(at, 8 + ring.capacity) };
        let (length, body) = slot.split_at_mut(8);
        let len = fill(body).min(ring.capacity);
        length.copy_from_slice(&(len as u64).to_le_bytes());
        self.sent = next;
        ring.written().set(&ring.memory, next);
        Ok(())
    }

    /// Sends a copy of `message`.
    ///
    /// # Errors
    /// Same as for `send_with`, or the message is longer than a slot.
    pub fn send(&mut self, message: &[u8]) -> Result<(), CommError> {
        let capacity = self.ring.capacity;
        if message.len() > capacity {
            let len = message.len();
            return Err(CommError::TooLong { len, capacity });
        }
        self.send_with(|slot| {
            slot[..message.len()].copy_from_slice(message);
            message.len()
        })?;
        Ok(())
    }

    /// Ends the ring: every wait at both ends fails with `reason`.
    pub fn end(&self, reason: &str) {
        self.ring.memory.end(reason);
    }
}

/// The receiving end of one reader.
pub struct Reader {
    ring: Ring,
    reader: usize,
    received: u32,
}

impl Reader {
    /// Opens receiving end number `reader` of the ring at `path`. It starts at the ring's first
    /// message.
    ///
    /// # Errors
    /// The file is missing or has a different shape.
    ///
    /// # Panics
    /// `reader` is not below `readers`.
    pub fn open(
        path: &Path,
        reader: usize,
        readers: usize,
        slots: usize,
        capacity: usize,
    ) -> Result<Self, CommError> {
        assert!(reader < readers, "reader {reader} of {readers}");
        let ring = Ring::open(path, readers, slots, capacity)?;
        Ok(Self {
            ring,
            reader,
            received: 0,
        })
    }

    /// Waits for the next message, calls `look` with the message in place, and frees its slot.
    /// `None` if no message arrives within `patience`.
    ///
    /// # Errors
    /// The ring has ended.
    pub fn receive_with<T>(
        &mut self,
        patience: Duration,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, GroupError> {
        let (ring, next) = (&self.ring, self.received.wrapping_add(1));
        match ring.written().wait(&ring.memory, next, 0, patience) {
            Ok(()) => {}
            Err(GroupError::Silent { .. }) => return Ok(None),
            Err(lost) => return Err(lost),
        }
        let at = ring.slot(next);
        // SAFETY: the writer completed this slot before it incremented `written`, and writes the
        // slot again only after this reader has incremented its counter.
        let slot = unsafe { ring.memory.bytes(at, 8 + ring.capacity) };
        let (length, body) = slot.split_at(8);
        let len = length
            .iter()
            .rev()
            .fold(0usize, |n, &b| n << 8 | usize::from(b));
        let seen = look(&body[..len.min(ring.capacity)]);
        self.received = next;
        ring.read(self.reader).set(&ring.memory, next);
        Ok(Some(seen))
    }

    /// True if a message is available.
    pub fn ready(&self) -> bool {
        self.ring.written().get(&self.ring.memory) != self.received
    }

    /// Ends the ring: every wait at both ends fails with `reason`.
    pub fn end(&self, reason: &str) {
        self.ring.memory.end(reason);
    }
}

fn slot_bytes(capacity: usize) -> usize {
    (8 + capacity).next_multiple_of(LINE)
}

fn slots_at(readers: usize) -> usize {
    (HEADER + (1 + readers) * LINE).next_multiple_of(4096)
}

fn size(readers: usize, slots: usize, capacity: usize) -> usize {
    slots_at(readers) + slots * slot_bytes(capacity)
}

fn shape(readers: usize, slots: usize, capacity: usize) -> String {
    format!("penstock ring 1: {readers} readers, {slots} slots of {capacity}")
}
