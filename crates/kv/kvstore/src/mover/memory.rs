//! Memory of the RAM tier: reserved at start-up, and faulted in before it is used.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use penstock_memory::Region;

/// Bytes that the background thread faults in before it checks again whether the memory is in use.
const PIECE: usize = 4 << 20;

/// Zeroed bytes, aligned to huge pages.
pub(crate) struct Reserved(Arc<Region>);

impl Reserved {
    /// # Errors
    /// The address range is not available.
    pub(crate) fn new(len: usize) -> std::io::Result<Self> {
        Ok(Self(Arc::new(Region::map(len)?)))
    }

    /// Faults in all pages, in order, on a low-priority background thread. The thread ends when the
    /// memory is dropped.
    pub(crate) fn touch_ahead(&self) {
        let (region, len) = (Arc::downgrade(&self.0), self.0.len());
        let thread = std::thread::Builder::new().name("penstock-kv-fill".into());
        // If the thread cannot start, pages are faulted in as slots are filled.
        let _ = thread.spawn(move || {
            penstock_memory::give_way();
            // The memory is borrowed for one piece at a time, so that its drop need not wait long.
            let touch = |at: usize| {
                let held = Weak::upgrade(&region);
                held.is_some_and(|held| held.populate(at..at + PIECE))
            };
            (0..len).step_by(PIECE).all(touch)
        });
    }
}

impl Deref for Reserved {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes of the mapping begin at `start`; the system has zeroed them. Only
        // this owner refers to them.
        unsafe { std::slice::from_raw_parts(self.0.start().as_ptr(), self.0.len()) }
    }
}

impl DerefMut for Reserved {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.start().as_ptr(), self.0.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of resident pages of `memory`, without the kernel's shared page of zeroes.
    fn resident(memory: &Reserved) -> usize {
        const OWN: u64 = 1 << 63 | 1 << 56;
        const PAGE: usize = 4096;
        let mut entries = vec![0; memory.len().div_ceil(PAGE) * 8];
        let file = std::fs::File::open("/proc/self/pagemap").unwrap();
        let at = memory.as_ptr().addr() / PAGE * 8;
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut entries, at as u64).unwrap();
        let entries = entries.as_chunks::<8>().0.iter();
        entries
            .filter(|&&entry| u64::from_le_bytes(entry) & OWN == OWN)
            .count()
    }

    #[test]
    fn what_is_touched_ahead_is_there_and_as_it_was() {
        let mut memory = Reserved::new(3 * PIECE + 5000).unwrap();
        assert_eq!(resident(&memory), 0);
        memory[PIECE + 1] = 7;
        memory.touch_ahead();
        // Its owner goes on writing meanwhile.
        memory[2 * PIECE] = 9;
        let all = memory.len().div_ceil(4096);
        let begin = std::time::Instant::now();
        while resident(&memory) < all {
            assert!(begin.elapsed().as_secs() < 60, "pages are missing");
            std::thread::yield_now();
        }
        assert_eq!((memory[PIECE + 1], memory[2 * PIECE]), (7, 9));
        let sum: usize = memory.iter().map(|&byte| usize::from(byte)).sum();
        assert_eq!(sum, 16);
    }

    #[test]
    fn memory_may_go_while_it_is_being_touched() {
        for _ in 0..20 {
            let memory = Reserved::new(64 << 20).unwrap();
            memory.touch_ahead();
            let mapping = Arc::downgrade(&memory.0);
            std::thread::yield_now();
            drop(memory);
            let begin = std::time::Instant::now();
            while mapping.strong_count() > 0 {
                assert!(begin.elapsed().as_secs() < 60, "the memory is still held");
                std::thread::yield_now();
            }
        }
    }
}
