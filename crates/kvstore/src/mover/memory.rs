//! Memory of the RAM tier: reserved at the start, on huge pages where the system has them, touched as slots are filled.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const HUGE_PAGE: usize = 2 << 20;

/// Zeroed bytes from the operating system, aligned to huge pages.
pub(crate) struct Reserved {
    mapped: NonNull<u8>,
    mapped_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: `Reserved` owns its mapping like a `Box<[u8]>`.
unsafe impl Send for Reserved {}
// SAFETY: as above.
unsafe impl Sync for Reserved {}

impl Reserved {
    /// # Errors
    /// The system has no such range of addresses.
    pub(crate) fn new(len: usize) -> std::io::Result<Self> {
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
}

impl Deref for Reserved {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes of the mapping begin at `start`; the system has zeroed them.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Reserved {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nobody borrows it any more.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
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

    #[test]
    fn what_cannot_be_reserved_is_an_error() {
        assert!(Reserved::new(usize::MAX).is_err() && Reserved::new(usize::MAX / 2).is_err());
        assert!(Reserved::new(0).unwrap().is_empty());
    }
}
