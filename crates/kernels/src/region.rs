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
/// # Safety
/// The range is mapped.
#[cfg(target_os = "linux")]
pub(crate) unsafe fn populate(start: *mut u8, len: usize) -> bool {
    const PAGE: usize = 4096;
    let before = start.addr() % PAGE;
    let len = (before + len).next_multiple_of(PAGE);
    // SAFETY: pages of a mapped range; the kernel changes no contents.
    unsafe { libc::madvise(start.sub(before).cast(), len, libc::MADV_POPULATE_WRITE) == 0 }
}

/// See above.
///
/// # Safety
/// None.
#[cfg(not(target_os = "linux"))]
pub(crate) unsafe fn populate(_: *mut u8, _: usize) -> bool {
    false
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
