/// Returns freed memory to the system. The allocator would keep it, in one arena per thread, and a
/// large request would leave the process large. Takes milliseconds.
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: malloc_trim takes the allocator's own locks and releases no memory in use.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing, as other allocators have no such call.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
