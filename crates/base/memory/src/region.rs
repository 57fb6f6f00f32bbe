//! An owned range of zeroed memory.

use std::ops::Range;
use std::ptr::NonNull;

use crate::touch::populate;

const HUGE_PAGE: usize = 2 << 20;

/// Zeroed memory from the operating system, aligned to huge pages (2 MiB), untouched until first
/// use. The owner manages which parts are borrowed.
pub struct Region {
    mapped: NonNull<u8>,
    mapped_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is only an address range, which any thread may unmap; access is through the
// owners of disjoint parts.
unsafe impl Send for Region {}
// SAFETY: same as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes.
    ///
    /// # Errors
    /// The system has no free address range of this size.
    pub fn map(len: usize) -> std::io::Result<Self> {
        let mapped_len = len
            .checked_add(HUGE_PAGE)
            .ok_or_else(|| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new anonymous mapping aliases no memory.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped_len, protection, flags, -1, 0) };
        let mapped = match NonNull::new(mapped.cast::<u8>()) {
            Some(mapped) if mapped.as_ptr().cast() != libc::MAP_FAILED => mapped,
            _ => return Err(std::io::Error::last_os_error()),
        };
        // SAFETY: the mapping is HUGE_PAGE longer than `len`, so the rounded-up address is inside
        // it.
        let start = unsafe { mapped.add(mapped.align_offset(HUGE_PAGE)) };
        #[cfg(target_os = "linux")]
        // SAFETY: a hint about a range of our own mapping; a refusal costs speed only.
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

    /// Pointer to the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Applies [`populate`] to the part of `range` inside the region.
    pub fn populate(&self, range: Range<usize>) -> bool {
        let (from, to) = (range.start.min(self.len), range.end.min(self.len));
        // SAFETY: inside the mapping, which is writable.
        unsafe { populate(self.start.add(from).as_ptr(), to.saturating_sub(from)) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; owners of parts hold the region, so no references remain.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_pages() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn it_is_zero_aligned_and_untouched() {
        let before = resident_pages();
        let region = Region::map(8 << 30).unwrap();
        assert!(region.start().addr().get().is_multiple_of(HUGE_PAGE));
        for at in [0, 5 << 30, (8 << 30) - 1] {
            // SAFETY: inside the mapping, which has no other owner.
            let byte = unsafe { region.start().add(at) };
            // SAFETY: the byte is inside the mapping, which has no other owner.
            unsafe {
                assert_eq!(byte.read(), 0);
                byte.write(1);
            }
        }
        assert!(resident_pages() < before + (1 << 30) / 4096);
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        assert!(Region::map(usize::MAX).is_err() && Region::map(usize::MAX / 2).is_err());
        let nothing = Region::map(0).unwrap();
        assert!(nothing.is_empty() && nothing.populate(0..10));
    }

    #[test]
    fn populating_gives_every_page_and_changes_nothing() {
        const BYTES: usize = (4 << 20) + 10_000;
        let region = Region::map(BYTES).unwrap();
        let start = region.start().as_ptr();
        let written = [100, 4096, 5 << 19, BYTES - 1];
        for at in written {
            // SAFETY: inside the mapping, which has no other owner.
            unsafe { start.add(at).write(7) };
        }
        // Starts within a page, like a block of a pool, and ends after the region.
        assert!(region.populate(100..BYTES + 1000));
        let mut answers = vec![0_u8; BYTES.div_ceil(4096)];
        // SAFETY: the range is mapped and starts at a page; `answers` has a byte per page.
        let asked = unsafe { libc::mincore(start.cast(), BYTES, answers.as_mut_ptr()) };
        assert_eq!(asked, 0);
        assert!(answers.iter().all(|&answer| answer & 1 == 1));
        // SAFETY: the range is mapped, and nothing writes to it while `bytes` is in use.
        let bytes = unsafe { std::slice::from_raw_parts(start, BYTES) };
        let found: Vec<_> = (0..BYTES).filter(|&at| bytes[at] != 0).collect();
        assert_eq!(found, written);
    }
}
