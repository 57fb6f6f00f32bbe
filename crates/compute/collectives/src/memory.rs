//! A file mapped by several processes.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::error::CommError;

/// Alignment in bytes (a cache line) of data written by different ranks, to avoid false sharing.
pub(crate) const LINE: usize = 64;
/// Size of the header in bytes. It holds the shape, then the flag that the group has ended and the
/// reason.
pub(crate) const HEADER: usize = 4096;
const FLAG: usize = 2048;
const REASON: usize = FLAG + 8;

/// A mapping shared between processes. Zeroed at creation; pages become resident on first use.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the type is only an address range. Concurrent accesses by threads or processes are
// atomic, or ordered by the counters of the group or ring.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates the file (mode 0600; it must not exist) with `shape` in its header.
    pub(crate) fn create(path: &Path, len: usize, shape: &str) -> Result<Self, CommError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|file| file.set_len(len as u64).map(|()| file));
        let memory = Self::map(path, file, len)?;
        // SAFETY: the header is inside the mapping, and no other process reads it before its length
        // is stored below.
        let header = unsafe { memory.bytes(8, 1024) };
        header[..shape.len()].copy_from_slice(shape.as_bytes());
        memory.atomic(0).store(shape.len() as u32, Release);
        Ok(memory)
    }

    /// Maps an existing file. Its length and shape must be the same as at its creation.
    pub(crate) fn open(path: &Path, len: usize, shape: &str) -> Result<Self, CommError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let found = file
            .as_ref()
            .map_or(0, |f| f.metadata().map_or(0, |m| m.len() as usize));
        if file.is_ok() && found != len {
            return Err(CommError::Shape {
                path: path.into(),
                found: format!("{found} bytes"),
                expected: format!("{len} bytes, {shape}"),
            });
        }
        let memory = Self::map(path, file, len)?;
        let len = memory.atomic(0).load(Acquire) as usize;
        // SAFETY: the shape was written before its length, and is never written again.
        let found = String::from_utf8_lossy(unsafe { memory.bytes(8, len.min(1024)) }).into_owned();
        if found != shape {
            return Err(CommError::Shape {
                path: path.into(),
                found,
                expected: shape.into(),
            });
        }
        Ok(memory)
    }

    /// Maps the header of any group or ring.
    pub(crate) fn open_header(path: &Path) -> Result<Self, CommError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Self::map(path, file, HEADER)
    }

    fn map(path: &Path, file: std::io::Result<File>, len: usize) -> Result<Self, CommError> {
        let fail = |source| CommError::File {
            path: path.into(),
            source,
        };
        let file = file.map_err(fail)?;
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping aliases no memory; the file has `len` bytes.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                flags,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(fail(std::io::Error::last_os_error()));
        }
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Self { start, len }),
            None => Err(fail(std::io::Error::other("mapped at address 0"))),
        }
    }

    /// The 32-bit word at byte `offset`.
    pub(crate) fn atomic(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.len,
            "word outside the mapping"
        );
        // SAFETY: aligned and inside the mapping, which lives as long as `self`; atomics may be
        // shared.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// `len` bytes from byte `offset` on.
    ///
    /// # Safety
    /// While the slice lives, these bytes have no other writer, and no reader if they are written
    /// through it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "bytes outside the mapping"
        );
        // SAFETY: inside the mapping; the caller guarantees that these bytes have no other writer,
        // and no reader if they are written through the slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), len) }
    }

    /// `len` f32 numbers from byte `offset` on.
    ///
    /// # Safety
    /// Same as for `bytes`.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn floats(&self, offset: usize, len: usize) -> &mut [f32] {
        assert!(
            offset.is_multiple_of(4) && offset <= self.len && len <= (self.len - offset) / 4,
            "numbers outside the mapping"
        );
        // SAFETY: inside the mapping and aligned; any bytes are valid numbers; the caller
        // guarantees exclusive access, as for `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset).cast(), len) }
    }

    /// The reason for the group's end, if it has ended.
    pub(crate) fn ended(&self) -> Option<String> {
        let len = self.atomic(FLAG).load(Acquire) as usize;
        if len == 0 {
            return None;
        }
        // SAFETY: the reason is written before the flag is set, which happens once.
        let reason = unsafe { self.bytes(REASON, len.min(512)) };
        Some(String::from_utf8_lossy(reason).into_owned())
    }

    /// Ends the group for every process that maps it. The first reason is kept.
    pub(crate) fn end(&self, reason: &str) {
        let claim = self.atomic(FLAG + 4);
        if claim.compare_exchange(0, 1, AcqRel, Relaxed).is_ok() {
            let reason = if reason.is_empty() {
                "no reason given"
            } else {
                reason
            };
            let len = (0..=reason.len().min(512))
                .rev()
                .find(|&i| reason.is_char_boundary(i))
                .unwrap_or(0);
            // SAFETY: only the process that claimed the flag writes the reason; it is read only
            // after the flag is set.
            unsafe { self.bytes(REASON, len) }.copy_from_slice(&reason.as_bytes()[..len]);
            self.atomic(FLAG).store(len as u32, Release);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; no slice outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
