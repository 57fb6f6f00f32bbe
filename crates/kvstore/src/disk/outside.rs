//! Parts whose payload somebody else moves, between files and memory that this process cannot
//! address: an accelerator's.
//!
//! Names, headers, room, commit point and quarantine stay the tier's, so its files are the same
//! whoever moved what is in them.

use std::fs::File;
use std::io::Error;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::{Disk, layout};
use crate::format::HEADER_BYTES;
use crate::key::PartKey;
use crate::tier::{About, TierError};

/// Where the payload begins in the file of a part.
pub const PAYLOAD_AT: usize = HEADER_BYTES;

impl Disk {
    /// `Tier::load` of a part of `bytes` of payload, which `take` reads from `PAYLOAD_AT` of the
    /// open file; it returns the CRC-64 of what arrived.
    ///
    /// # Errors
    /// Those of `Tier::load`. What `take` says is `Failed`; that the file ends early, `Damaged`.
    pub fn load_by(
        &self,
        key: &PartKey,
        bytes: usize,
        take: impl FnOnce(&File) -> Result<u64, Error>,
    ) -> Result<(), TierError> {
        self.load_with(key, bytes, |file| {
            let mut page = [0; HEADER_BYTES];
            file.read_exact_at(&mut page, 0)?;
            Ok((page, take(file)?))
        })
    }

    /// `Tier::store` of a part of `bytes` of payload, which `give` writes from `PAYLOAD_AT` of the
    /// new file; it returns the CRC-64 of what it wrote. Called again when the file system was full
    /// and room was made.
    ///
    /// # Errors
    /// Those of `Tier::store`.
    pub fn store_by(
        &self,
        key: &PartKey,
        bytes: usize,
        give: impl Fn(&File) -> Result<u64, Error>,
    ) -> Result<(), TierError> {
        self.store_with(key, bytes, &About::default(), &|file, header| {
            allot(file, layout::file_bytes(bytes as u64))?;
            let page = header(give(file)?);
            file.write_all_at(&page, 0)
        })
    }
}

/// Gives the file its length, and room for it: that the file system is full must be known here,
/// because those who write do not say it in numbers.
fn allot(file: &File, bytes: u64) -> Result<(), Error> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => file.set_len(bytes),
        allotted => Ok(allotted?),
    }
}
