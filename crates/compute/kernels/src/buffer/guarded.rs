//! Memory that ends at a guard page, for unit tests: a kernel that reads past an operand faults.

use std::ptr::NonNull;

const PAGE: usize = 4096;

/// Zeroed pages followed by a guard page.
pub(super) struct Pages {
    start: NonNull<u8>,
    /// Length in bytes, guard page included.
    len: usize,
}

impl Pages {
    /// Maps pages for `bytes`.
    pub(super) fn map(bytes: usize) -> Self {
        let usable = bytes.next_multiple_of(PAGE);
        let len = usable + PAGE;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: a new anonymous mapping aliases no memory; its last page is in it.
        unsafe {
            let start = libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED, "no {len} bytes");
            let sealed = libc::mprotect(start.byte_add(usable), PAGE, libc::PROT_NONE);
            assert_eq!(sealed, 0, "no guard page");
            let start = NonNull::new(start.cast()).unwrap();
            Self { start, len }
        }
    }

    /// The last `bytes` before the guard page.
    pub(super) fn last(&self, bytes: usize) -> NonNull<u8> {
        // SAFETY: the mapping has at least `bytes` before the guard page.
        unsafe { self.start.add(self.len - PAGE - bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; the owner no longer uses the memory.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
