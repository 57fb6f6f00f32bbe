//! A fast fingerprint of a checkpoint's contents.

use std::ops::Range;

use crate::checkpoint::Entry;
use crate::{Checkpoint, FormatError};

/// Bytes sampled at each end of a tensor.
const SAMPLE: usize = 4096;
const DOMAIN: &[u8] = b"penstock checkpoint fingerprint v1";

impl Checkpoint {
    /// BLAKE3 over the GGUF metadata (as stored) and, for each tensor in name order, its name,
    /// element type, shape, and the first and last 4 KiB of its data. Independent of the
    /// distribution of tensors over files.
    ///
    /// Checkpoints that differ only in the middle of tensors larger than 8 KiB share a fingerprint.
    /// It distinguishes models, quantisations and fine-tunes in milliseconds; it does not prove
    /// integrity.
    ///
    /// Reads only the sampled bytes, with all reads from a disk in flight at once. Page faults in
    /// the mapping would make the kernel read ahead, and so most of the file.
    ///
    /// # Errors
    /// A file cannot be read, or is shorter than when it was opened.
    pub fn fingerprint(&self) -> Result<[u8; 32], FormatError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(DOMAIN);
        let metadata = self.gguf.as_ref().map_or(&[][..], |header| {
            &self.files[0].map[header.metadata_range.clone()]
        });
        update_framed(&mut hasher, metadata);
        for entry in self.tensors.values() {
            let file = &self.files[entry.file];
            samples(entry).for_each(|sample| file.will_need(&sample));
        }
        for (name, entry) in &self.tensors {
            update_framed(&mut hasher, name.as_bytes());
            self.update_tensor(&mut hasher, name, entry)?;
        }
        Ok(*hasher.finalize().as_bytes())
    }

    fn update_tensor(
        &self,
        hasher: &mut blake3::Hasher,
        name: &str,
        entry: &Entry,
    ) -> Result<(), FormatError> {
        let dtype = entry
            .dtype
            .as_ref()
            .map_or_else(String::as_str, |dtype| dtype.name());
        update_framed(hasher, dtype.as_bytes());
        hasher.update(&(entry.shape.len() as u64).to_le_bytes());
        for &dimension in &entry.shape {
            hasher.update(&(dimension as u64).to_le_bytes());
        }
        let mut buffer = [0; SAMPLE];
        for sample in samples(entry) {
            let bytes = &mut buffer[..sample.len()];
            self.files[entry.file].read_at(bytes, sample.start, name)?;
            update_framed(hasher, bytes);
        }
        Ok(())
    }
}

/// The first and the last [`SAMPLE`] bytes of a tensor, as byte ranges of its file.
fn samples(entry: &Entry) -> impl Iterator<Item = Range<usize>> {
    let Range { start, end } = entry.range;
    let size = (end - start).min(SAMPLE);
    [start..start + size, end - size..end].into_iter()
}

/// Hashes the length of `bytes` before its content, so that different sequences of fields hash
/// differently.
fn update_framed(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}
