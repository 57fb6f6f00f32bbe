//! Memory of the RAM tier: reserved at the start, on huge pages where the system has them, and touched ahead of its use.
//!
//! A page that is touched for the first time takes the system about 6 us in a virtual machine, ten times as long as copying into it.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

const HUGE_PAGE: usize = 2 << 20;
const PAGE: usize = 4096;
/// Bytes that are touched while the memory is held.
const PIECE: usize = 2 * HUGE_PAGE;

/// A range of addresses; nothing refers to what is in it but the owner of its [`Reserved`].
struct Mapping {
    mapped: NonNull<u8>,
    mapped_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is only a range of addresses, which any thread may unmap.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared one is used for advice to the system alone.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> std::io::Result<Self> {
        let mapped_len = len
            .checked_add(HUGE_PAGE)
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_len, protection, flags, -1, 0) };
        let mapped = match NonNull::new(mapped.cast::<u8>()) {
            Some(mapped) if mapped.as_ptr().cast() != libc::MAP_FAILED => mapped,
            _ => return Err(std::io::Error::last_os_error()),
        };
        // SAFETY: the mapping is HUGE_PAGE longer than `len`, so the rounded-up address is inside it.
        let start = unsafe { mapped.add(mapped.align_offset(HUGE_PAGE)) };
        // SAFETY: advice about a range of our own mapping; a refusal costs speed only.
        unsafe {
            libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
        }
        Ok(Self {
            mapped,
            mapped_len,
            start,
            len,
        })
    }

    /// Has the system give PIECE bytes from `at` on their memory, as if they were written; contents stay as they are. False where it cannot.
    fn touch(&self, at: usize) -> bool {
        (at..self.len.min(at + PIECE)).step_by(PAGE).all(|at| {
            // SAFETY: a page's begin in our own mapping.
            unsafe { touch(self.start.add(at).as_ptr()) }
        })
    }
}

/// Writes a byte as it is. In one instruction, and in assembly: whoever else writes there meanwhile loses nothing, and has no data race with it.
///
/// Not `MADV_POPULATE_WRITE` of many pages: that holds the lock of the whole address space, so a thread of the lowest priority kept others from
/// `mmap` for up to 2.9 s on a busy machine. A fault locks the range that it is in.
///
/// # Safety
/// The byte is mapped and may be written.
#[cfg(target_arch = "x86_64")]
unsafe fn touch(page: *mut u8) -> bool {
    // SAFETY: changes no contents.
    unsafe { std::arch::asm!("lock or byte ptr [{}], 0", in(reg) page, options(nostack)) };
    true
}

/// Has the system do so for one page; false where it cannot.
///
/// # Safety
/// As above, and the page begins there.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn touch(page: *mut u8) -> bool {
    // SAFETY: changes no contents.
    unsafe { libc::madvise(page.cast(), PAGE, libc::MADV_POPULATE_WRITE) == 0 }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nobody borrows it any more.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
    }
}

/// Zeroed bytes from the operating system, aligned to huge pages.
pub(crate) struct Reserved(Arc<Mapping>);

impl Reserved {
    /// # Errors
    /// The system has no such range of addresses.
    pub(crate) fn new(len: usize) -> std::io::Result<Self> {
        Ok(Self(Arc::new(Mapping::new(len)?)))
    }

    /// Touches all of it from the first byte to the last, on a thread of its own that gives way to all others and ends with the memory.
    pub(crate) fn touch_ahead(&self) {
        let (mapping, len) = (Arc::downgrade(&self.0), self.0.len);
        let thread = std::thread::Builder::new().name("penstock-kv-fill".into());
        // Without that thread, pages are touched as slots are filled.
        let _ = thread.spawn(move || {
            give_way();
            // The memory is held for a piece at a time: whoever drops it waits for nothing.
            let touch = |at: usize| Weak::upgrade(&mapping).is_some_and(|held| held.touch(at));
            (0..len).step_by(PIECE).all(touch)
        });
    }
}

/// This thread runs when no other wants to.
fn give_way() {
    const LAST: i32 = 19;
    // SAFETY: no memory is involved; on Linux this is the calling thread's priority alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LAST) };
}

impl Deref for Reserved {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes of the mapping begin at `start`; the system has zeroed them. Only this owner refers to them.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len) }
    }
}

impl DerefMut for Reserved {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_zero_and_untouched() {
        let resident = || {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
            pages * 4096
        };
        let before = resident();
        let mut memory = Reserved::new(8 << 30).unwrap();
        memory[5 << 30] = 1;
        assert_eq!((memory[0], memory[5 << 30], memory.len()), (0, 1, 8 << 30));
        assert!(memory.as_ptr().addr().is_multiple_of(HUGE_PAGE));
        assert!(resident() < before + (1 << 30));
    }

    /// Pages of `memory` that it has for itself: a page of zeroes that all share is not one.
    fn resident(memory: &Reserved) -> usize {
        const OWN: u64 = 1 << 63 | 1 << 56;
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
        let all = memory.len().div_ceil(PAGE);
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

    #[test]
    fn what_cannot_be_reserved_is_an_error() {
        assert!(Reserved::new(usize::MAX).is_err() && Reserved::new(usize::MAX / 2).is_err());
        assert!(Reserved::new(0).unwrap().is_empty());
    }
}
