//! Ends a group or ring of ranks from a process that is not a member.

use std::path::Path;

use crate::error::CommError;
use crate::memory::Memory;

/// Access to a group or ring for a process that is not a member. When a rank is lost, the watchdog
/// uses it to fail the other ranks' pending waits.
pub struct Fence {
    memory: Memory,
}

impl Fence {
    /// Opens the group or ring at `path`; the file may then be removed.
    ///
    /// # Errors
    /// No such file.
    pub fn open(path: &Path) -> Result<Self, CommError> {
        let memory = Memory::open_header(path)?;
        Ok(Self { memory })
    }

    /// Fails every pending and later wait of every rank with `reason`. Later calls do not change
    /// the reason.
    pub fn end(&self, reason: &str) {
        self.memory.end(reason);
    }
}
