//! Memory for weights and the KV pool, on huge pages where the system has them.
//!
//! A step reads all weights and much of the KV pool. On 4 KiB pages every page costs a walk of the page tables, twice as deep in a virtual
//! machine; on 2 MiB pages hardly any does. Matrices are smaller than that, so they are carved from shared regions.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

const HUGE_PAGE: usize = 2 << 20;
/// Size of a region that is shared, and of what gets a region of its own.
const SHARED: usize = 32 << 20;
const OWN: usize = 8 << 20;

/// Zeroed memory from the operating system, aligned to huge pages, untouched until used.
pub(crate) struct Region {
    mapped: NonNull<u8>,
    mapped_len: usize,
    start: NonNull<u8>,
}

// SAFETY: a region is only an address range; access goes through the owners of disjoint parts.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `None` when the system has no such memory.
    fn map(len: usize) -> Option<Self> {
        let mapped_len = len.checked_add(HUGE_PAGE)?;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new anonymous mapping touches nothing that exists.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_len, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        let mapped = NonNull::new(mapped.cast::<u8>())?;
        // SAFETY: the mapping is HUGE_PAGE longer than `len`, so the rounded-up address is inside it.
        let start = unsafe { mapped.add(mapped.align_offset(HUGE_PAGE)) };
        #[cfg(target_os = "linux")]
        // SAFETY: advice about a range of our own mapping; a refusal costs speed only.
        unsafe {
            libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
        }
        Some(Self {
            mapped,
            mapped_len,
            start,
        })
    }
}

/// Has the system back a range with memory, as if each page had been written to; its contents stay. False where it cannot.
///
/// Page by page through faults, which lock the range that they are in: `MADV_POPULATE_WRITE` holds the lock of the whole address space, so a thread
/// of the lowest priority kept others from `mmap` for up to 2.9 s on a busy machine.
///
/// # Safety
/// The range is mapped and may be written.
pub(crate) unsafe fn populate(start: *mut u8, len: usize) -> bool {
    const PAGE: usize = 4096;
    let before = start.addr() % PAGE;
    (0..before + len).step_by(PAGE).all(|at| {
        // SAFETY: a page that the range begins or goes on in, so it is mapped.
        unsafe { touch(start.sub(before).add(at)) }
    })
}

/// Writes a byte as it is. In one instruction, and in assembly: whoever else writes there meanwhile loses nothing, and has no data race with it.
///
/// # Safety
/// The byte is mapped and may be written.
#[cfg(target_arch = "x86_64")]
unsafe fn touch(page: *mut u8) -> bool {
    // SAFETY: changes no contents.
    unsafe { std::arch::asm!("lock or byte ptr [{}], 0", in(reg) page, options(nostack)) };
    true
}

/// Has the system do so, for the page that begins at `page`; false where it cannot.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn touch(page: *mut u8) -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: changes no contents.
    return unsafe { libc::madvise(page.cast(), 4096, libc::MADV_POPULATE_WRITE) == 0 };
    #[cfg(not(target_os = "linux"))]
    return {
        let _ = page;
        false
    };
}

/// This thread runs when no other wants to.
pub(crate) fn give_way() {
    const LAST: i32 = 19;
    // SAFETY: no memory is involved; on Linux this is the calling thread's priority alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LAST) };
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; nobody holds a part any more, or an owner would hold the region.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
    }
}

/// The region that small requests are carved from, and how much of it is taken.
static CURRENT: Mutex<Option<(Arc<Region>, usize)>> = Mutex::new(None);

/// `bytes` of zeroed memory, aligned to 64 bytes, valid while the region is held; `None` when the system has none.
pub(crate) fn carve(bytes: usize) -> Option<(Arc<Region>, NonNull<u8>)> {
    let bytes = bytes.checked_next_multiple_of(64)?;
    if bytes >= OWN {
        let region = Arc::new(Region::map(bytes)?);
        let start = region.start;
        return Some((region, start));
    }
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    if current
        .as_ref()
        .is_none_or(|(_, taken)| taken + bytes > SHARED)
    {
        *current = Some((Arc::new(Region::map(SHARED)?), 0));
    }
    let (region, taken) = current.as_mut()?;
    // SAFETY: taken + bytes <= SHARED, the region's length.
    let start = unsafe { region.start.add(*taken) };
    *taken += bytes;
    Some((Arc::clone(region), start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn populating_gives_every_page_and_changes_nothing() {
        const BYTES: usize = (4 << 20) + 10_000;
        let region = Region::map(BYTES).unwrap();
        let byte = |at: usize| {
            // SAFETY: inside the mapping, which nobody else has.
            unsafe { region.start.add(at).as_ptr() }
        };
        let written = [100, 4096, 5 << 19, BYTES - 1];
        for at in written {
            // SAFETY: as above.
            unsafe { byte(at).write(7) };
        }
        // SAFETY: the range is mapped; it begins within a page, as blocks of a pool may.
        assert!(unsafe { populate(byte(100), BYTES - 100) });
        let mut answers = vec![0_u8; BYTES.div_ceil(4096)];
        // SAFETY: the range is mapped and begins at a page; there is a byte of answer for each page.
        let asked = unsafe { libc::mincore(byte(0).cast(), BYTES, answers.as_mut_ptr()) };
        assert_eq!(asked, 0);
        assert!(answers.iter().all(|&answer| answer & 1 == 1));
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(byte(0), BYTES) };
        let found: Vec<_> = (0..BYTES).filter(|&at| bytes[at] != 0).collect();
        assert_eq!(found, written);
    }
}
