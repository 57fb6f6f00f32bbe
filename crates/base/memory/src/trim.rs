/// Returns freed memory to the system. Otherwise the allocator keeps it, in one arena per thread,
/// and the process stays large after a large request. Takes milliseconds.
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: malloc_trim takes the allocator's own locks and releases no memory in use.
    unsafe { libc::malloc_trim(0) };
}

/// No-op: other allocators have no such call.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
