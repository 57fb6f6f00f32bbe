//! Transfers of KV between the pool of a rank and its tiers, and their results.

use super::FrameError;
use super::fields::Fields;
use super::writer::FrameWriter;

/// Digest of a block (`penstock_prefix::Digest`).
type Digest = [u8; 32];
/// Salt group (`penstock_prefix::Group`).
type Group = [u8; 4];

/// Kind of a transfer, with its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TransferKind {
    /// Tier -> pool.
    Load = 1,
    /// Pool -> tier.
    Store = 2,
    /// Checks which chunks a tier has.
    Probe = 3,
    /// Removes chunks from all chunk tiers (tiers that store chunks: disk, Redis, object store).
    Remove = 4,
    /// Cancels transfers. Has no result.
    Cancel = 5,
    /// Removes a salt group, or everything, from all chunk tiers.
    Clear = 6,
}

/// Fault of a tier in a failed transfer, with its code; over several ranks the largest one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Fault {
    /// No fault: done, missing, cancelled, or unsupported by the tier.
    #[default]
    None = 0,
    /// Store: no space, or the daily write budget is used up.
    Full = 1,
    /// Load: a KV part (one head of one chunk) has a wrong checksum or header; it was quarantined.
    Damaged = 2,
    /// The tier failed: it reported an error or did not answer.
    Failed = 3,
}

/// A transfer, which every rank applies to its own layers and heads of the blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Identifies the transfer in its result.
    pub id: u64,
    pub kind: TransferKind,
    /// 0 = RAM, 1 and up = the chunk tiers.
    pub tier: usize,
    /// Numbers of the blocks in the pools, one KV group after the other, the same number for each
    /// group; for a chunk tier, the blocks of one chunk. Load: -1 for a block that its group does
    /// not need.
    pub blocks: Vec<i32>,
    /// RAM: numbers of entries in the RAM tier. `slots[i]` holds the i-th block of every group.
    pub slots: Vec<i32>,
    /// Digests of chunks.
    pub keys: Vec<Digest>,
    /// Probe: number of blocks in each chunk.
    pub counts: Vec<i32>,
    /// Cancel: ids of the transfers.
    pub ids: Vec<u64>,
    /// Store to a chunk tier: the prefix before the chunk, if known.
    pub parent: Option<Digest>,
    /// Clear: the salt group to remove; `None` = everything of this cache identity.
    pub group: Option<Group>,
}

/// The result of a transfer on one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransferResult {
    /// Id of the transfer.
    pub id: u64,
    /// True if the whole transfer succeeded.
    pub done: bool,
    /// Probe: one byte for each chunk, 1 if the tier has all KV parts of this rank.
    pub found: Vec<u8>,
    /// Bytes moved.
    pub bytes: u64,
    /// Duration of the data movement in seconds, without the time in the queue.
    pub seconds: f64,
    /// Seconds that the transfer waited in the queue.
    pub waited: f64,
    /// Reason of a failure; empty if the data is missing or the transfer was cancelled.
    pub error: String,
    /// Fault of the tier.
    pub fault: Fault,
    /// Chunks that the tier has evicted and no earlier result has reported.
    pub left: Vec<Digest>,
}

const NAME: &str = "TRANSFER";
const RESULTS: &str = "TRANSFER RESULTS";
/// Bytes of a transfer without its lists: after, id, kind, tier, five counts, presence of parent
/// and group.
const HEAD: usize = 2 * 8 + 2 + 5 * 4 + 1;
const PARENT: u8 = 1;
const GROUP: u8 = 2;
const DONE: u8 = 1;
/// Shift of the fault code within the flags.
const FAULT: u32 = 1;
/// Maximum bytes of an error message.
const MOST_ERROR: usize = 1 << 10;
/// Bytes of a result without its lists: id, flags, byte count, two times, and lengths of `found`,
/// `error` and `left`.
const RESULT_HEAD: usize = 8 + 1 + 3 * 8 + 3 * 4;

impl TransferKind {
    /// The kind with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        use TransferKind::{Cancel, Clear, Load, Probe, Remove, Store};
        let all = [Load, Store, Probe, Remove, Cancel, Clear];
        all.get(usize::from(code).wrapping_sub(1)).copied()
    }
}

impl Fault {
    /// The fault with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        let all = [Self::None, Self::Full, Self::Damaged, Self::Failed];
        all.get(usize::from(code)).copied()
    }
}

impl Transfer {
    /// Appends the transfer. `after` is the number of plans whose results the engine has received;
    /// a rank starts the transfer once it has computed that many plans since its tiers were opened.
    /// Error: `tier` above 255.
    pub fn encode(&self, after: u64, out: &mut Vec<u8>) -> Result<(), FrameError> {
        FrameWriter::message(out, NAME, |w| {
            w.u64(after);
            w.u64(self.id);
            w.u8(self.kind as u8);
            let tier = u8::try_from(self.tier);
            w.u8(tier.map_err(|_| w.refuse("tier", self.tier, "0 to 255"))?);
            w.count(self.blocks.len());
            w.count(self.slots.len());
            w.count(self.keys.len());
            w.count(self.counts.len());
            w.count(self.ids.len());
            let flag = |present, flag| if present { flag } else { 0 };
            w.u8(flag(self.parent.is_some(), PARENT) | flag(self.group.is_some(), GROUP));
            w.i32_column(&self.blocks);
            w.i32_column(&self.slots);
            w.array(self.keys.as_flattened());
            w.i32_column(&self.counts);
            self.ids.iter().for_each(|id| w.u64(*id));
            w.array(self.parent.as_slice().as_flattened());
            w.array(self.group.as_slice().as_flattened());
            Ok(())
        })
    }

    /// Decodes one whole transfer and `after`, its number of preceding plans.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u64), FrameError> {
        Fields::frame(bytes, NAME, |f| {
            let after = f.u64("after")?;
            let id = f.u64("id")?;
            let code = f.u8("kind")?;
            let kind =
                TransferKind::from_code(code).ok_or_else(|| f.refuse("kind", 1, code, "1 to 6"))?;
            let tier = f.u8("tier")?.into();
            let [blocks, slots, keys, counts, ids] = [
                f.size("blocks")?,
                f.size("slots")?,
                f.size("keys")?,
                f.size("counts")?,
                f.size("ids")?,
            ];
            let flags = f.u8("flags")?;
            if flags & !(PARENT | GROUP) != 0 {
                return Err(f.refuse("flags", 1, flags, "0 to 3"));
            }
            let transfer = Self {
                id,
                kind,
                tier,
                blocks: f.i32_column("blocks", blocks)?,
                slots: f.i32_column("slots", slots)?,
                keys: f.column("keys", keys)?.to_vec(),
                counts: f.i32_column("counts", counts)?,
                ids: f
                    .column("ids", ids)?
                    .iter()
                    .map(|id| u64::from_le_bytes(*id))
                    .collect(),
                parent: match flags & PARENT {
                    0 => None,
                    _ => Some(f.array("parent")?),
                },
                group: match flags & GROUP {
                    0 => None,
                    _ => Some(f.array("group")?),
                },
            };
            Ok((transfer, after))
        })
    }
}

/// Size in bytes of the largest transfer over a pool of `blocks` blocks; a chunk has at least one
/// block.
pub fn transfer_bytes(blocks: usize) -> usize {
    HEAD + 2 * 32 + blocks * (32 + 4)
}

impl TransferResult {
    /// A failed result without data movement.
    pub fn refused(id: u64, error: impl Into<String>) -> Self {
        Self {
            id,
            error: error.into(),
            ..Self::default()
        }
    }

    /// Encodes results as messages of at most `capacity` bytes; a larger result is a message of its
    /// own. Error texts are truncated to 1 KiB.
    pub fn encode_all(results: &[Self], capacity: usize) -> Result<Vec<Vec<u8>>, FrameError> {
        let mut messages: Vec<Vec<u8>> = Vec::new();
        for result in results {
            let error = shortened(&result.error);
            let left = result.left.as_flattened();
            let size = RESULT_HEAD + result.found.len() + error.len() + left.len();
            if messages.last().is_none_or(|m| m.len() + size > capacity) {
                messages.push(Vec::with_capacity(size));
            }
            let Some(message) = messages.last_mut() else {
                unreachable!("a message was pushed")
            };
            FrameWriter::message(message, RESULTS, |w| {
                w.u64(result.id);
                w.u8((u8::from(result.done) * DONE) | ((result.fault as u8) << FAULT));
                w.u64(result.bytes);
                w.f64(result.seconds);
                w.f64(result.waited);
                w.bytes(&result.found);
                w.bytes(error.as_bytes());
                w.count(result.left.len());
                w.array(left);
                Ok(())
            })?;
        }
        Ok(messages)
    }

    /// Decodes the results of one message.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<Self>, FrameError> {
        Fields::frame(bytes, RESULTS, |f| {
            let mut results = Vec::new();
            while !f.is_empty() {
                let id = f.u64("id")?;
                let marks = f.u8("marks")?;
                let fault = Fault::from_code(marks >> FAULT)
                    .ok_or_else(|| f.refuse("marks", 1, marks, "0 to 7"))?;
                results.push(Self {
                    id,
                    done: marks & DONE != 0,
                    fault,
                    bytes: f.u64("bytes")?,
                    seconds: f.f64("seconds")?,
                    waited: f.f64("waited")?,
                    found: f.bytes("found")?.to_vec(),
                    error: f.string("error")?,
                    left: {
                        let left = f.size("left")?;
                        f.column("left", left)?.to_vec()
                    },
                });
            }
            Ok(results)
        })
    }
}

/// The first [`MOST_ERROR`] bytes of an error text, cut at a character boundary.
fn shortened(error: &str) -> &str {
    let most = error.len().min(MOST_ERROR);
    let end = (0..=most).rev().find(|at| error.is_char_boundary(*at));
    &error[..end.unwrap_or(0)]
}
