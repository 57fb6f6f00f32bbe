//! Ends a group or ring of ranks from a process that is not a member.

use std::path::Path;

use crate::error::CommError;
use crate::memory::Memory;

/// A handle on a group or ring for a non-member: when a rank is lost, the watchdog uses it to end
/// the other ranks' waits.
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

    /// Ends every wait of every rank with `reason`. Later calls do not change the reason.
    pub fn end(&self, reason: &str) {
        self.memory.end(reason);
    }
}
