//! Backing memory with pages before its first use.

const PAGE: usize = 4096;

/// Has the system back a range with memory, as if each page had been written to; its contents stay.
/// False where it cannot.
///
/// Page by page through faults, which lock the range that they are in: `MADV_POPULATE_WRITE` holds
/// the lock of the whole address space, so a thread of the lowest priority kept others from `mmap`
/// for up to 2.9 s on a busy machine.
///
/// # Safety
/// The range is mapped and may be written.
pub unsafe fn populate(start: *mut u8, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    let before = start.addr() % PAGE;
    (0..before + len).step_by(PAGE).all(|at| {
        // SAFETY: a page that the range begins or goes on in, so it is mapped.
        unsafe { touch(start.sub(before).add(at)) }
    })
}

/// Writes a byte as it is. In one instruction, and in assembly: another thread that writes there
/// meanwhile loses nothing, and has no data race with it.
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
    return unsafe { libc::madvise(page.cast(), PAGE, libc::MADV_POPULATE_WRITE) == 0 };
    #[cfg(not(target_os = "linux"))]
    return {
        let _ = page;
        false
    };
}

/// The calling thread runs when no other wants to, from now on.
pub fn give_way() {
    const LAST: i32 = 19;
    // SAFETY: no memory is involved; on Linux this is the calling thread's priority alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LAST) };
}
