//! A cheap identity of a checkpoint's contents.

use crate::Checkpoint;
use crate::checkpoint::Entry;

/// Bytes read from each end of a tensor.
const SAMPLE: usize = 4096;
const DOMAIN: &[u8] = b"penstock checkpoint fingerprint v1";

impl Checkpoint {
    /// BLAKE3 over the GGUF metadata (as stored) and, for each tensor in name order, its name,
    /// element type, shape, and the first and last 4 KiB of its data. How tensors are spread over
    /// files does not matter.
    ///
    /// Two checkpoints that differ only in the middle of tensors larger than 8 KiB share a
    /// fingerprint: it tells models, quantisations and fine-tunes apart in milliseconds, it does
    /// not prove integrity.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(DOMAIN);
        let metadata = self.gguf.as_ref().map_or(&[][..], |header| {
            &self.files[0].map[header.metadata_range.clone()]
        });
        update_framed(&mut hasher, metadata);
        for (name, entry) in &self.tensors {
            update_framed(&mut hasher, name.as_bytes());
            self.update_tensor(&mut hasher, entry);
        }
        *hasher.finalize().as_bytes()
    }

    fn update_tensor(&self, hasher: &mut blake3::Hasher, entry: &Entry) {
        let dtype = entry
            .dtype
            .as_ref()
            .map_or_else(String::as_str, |dtype| dtype.name());
        update_framed(hasher, dtype.as_bytes());
        hasher.update(&(entry.shape.len() as u64).to_le_bytes());
        for &dimension in &entry.shape {
            hasher.update(&(dimension as u64).to_le_bytes());
        }
        let data = self.data(entry);
        update_framed(hasher, &data[..data.len().min(SAMPLE)]);
        update_framed(hasher, &data[data.len().saturating_sub(SAMPLE)..]);
    }
}

/// Length before content, so that no two sequences of fields hash alike.
fn update_framed(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}
