//! Prefaulting: backs memory with pages before its first use.

const PAGE: usize = 4096;

/// Backs a range with physical pages, as if each page had been written to; contents are unchanged.
/// Returns false if this is not possible.
///
/// Touches the range page by page, because a page fault locks only a part of the address space.
/// `MADV_POPULATE_WRITE` holds the lock of the whole address space: a thread of the lowest priority
/// blocked other threads' `mmap` for up to 2.9 s on a busy machine.
///
/// # Safety
/// The range is mapped and writable.
pub unsafe fn populate(start: *mut u8, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    let before = start.addr() % PAGE;
    (0..before + len).step_by(PAGE).all(|at| {
        // SAFETY: the page contains a byte of the range, so it is mapped.
        unsafe { touch(start.sub(before).add(at)) }
    })
}

/// Rewrites a byte with its own value, in one atomic instruction and in assembly, so that
/// concurrent writes are not lost and there is no data race.
///
/// # Safety
/// The byte is mapped and writable.
#[cfg(target_arch = "x86_64")]
unsafe fn touch(page: *mut u8) -> bool {
    // SAFETY: changes no contents.
    unsafe { std::arch::asm!("lock or byte ptr [{}], 0", in(reg) page, options(nostack)) };
    true
}

/// Backs the page that starts at `page`; returns false if this is not possible.
///
/// # Safety
/// The page is mapped and writable.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn touch(page: *mut u8) -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: changes no contents.
    return unsafe { libc::madvise(page.cast(), PAGE, libc::MADV_POPULATE_WRITE) == 0 };
    #[cfg(not(target_os = "linux"))]
    return {
        let _ = page;
        false
    };
}

/// Gives the calling thread the lowest priority.
pub fn give_way() {
    const LAST: i32 = 19;
    // SAFETY: accesses no memory; on Linux this is the priority of the calling thread only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LAST) };
}
