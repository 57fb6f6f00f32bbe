/// Gives memory that was freed back to the system. The allocator keeps it otherwise, in one arena
/// for each thread, and a large request would leave the process large. Takes milliseconds.
#[cfg(target_env = "gnu")]
pub fn trim() {
    // SAFETY: malloc_trim takes the allocator's own locks and frees no memory in use.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators have no such call.
#[cfg(not(target_env = "gnu"))]
pub fn trim() {}
