//! Encodes batches of KV events as arrays, the format that all consumer versions accept.

use crate::Medium;

/// vLLM's name and locality of a medium. The KV pool is named `GPU` even on a CPU.
fn words(medium: Medium) -> (&'static str, Option<&'static str>) {
    match medium {
        Medium::Pool => ("GPU", None),
        Medium::Ram => ("CPU", None),
        Medium::Disk => ("STORAGE", Some("LOCAL")),
        Medium::Shared => ("STORAGE", Some("REMOTE")),
    }
}

/// The batch being written. Adjacent changes of one kind are coalesced into one event.
#[derive(Debug, Default)]
pub struct BatchWriter {
    events: usize,
    written: Vec<u8>,
    open: Option<Open>,
}

#[derive(Debug)]
enum Open {
    Stored(Run),
    /// Blocks that are now in another medium as well.
    Copied(Medium, Vec<u64>),
    Removed(Medium, Vec<u64>),
}

/// Consecutive blocks of one sequence.
#[derive(Debug)]
struct Run {
    parent: Option<u64>,
    hashes: Vec<u64>,
    tokens: Vec<u32>,
    block_size: usize,
    salt: Option<String>,
}

impl BatchWriter {
    /// Adds to the pool the block `hash` with these `tokens`, which follows the block `parent`.
    /// `salt` distinguishes the block from blocks of other tenants with equal tokens.
    pub fn stored(&mut self, hash: u64, parent: Option<u64>, tokens: &[u32], salt: Option<&str>) {
        if let Some(Open::Stored(run)) = &mut self.open
            && run.hashes.last().copied() == parent
            && run.block_size == tokens.len()
            && run.salt.as_deref() == salt
        {
            run.hashes.push(hash);
            run.tokens.extend_from_slice(tokens);
            return;
        }
        self.close();
        self.open = Some(Open::Stored(Run {
            parent,
            hashes: vec![hash],
            tokens: tokens.to_vec(),
            block_size: tokens.len(),
            salt: salt.map(str::to_owned),
        }));
    }

    /// Records a copy of the block `hash`, which is or was in the pool, in a lower tier.
    pub fn copied(&mut self, hash: u64, medium: Medium) {
        if let Some(Open::Copied(same, hashes)) = &mut self.open
            && *same == medium
        {
            hashes.push(hash);
            return;
        }
        self.close();
        self.open = Some(Open::Copied(medium, vec![hash]));
    }

    /// Records that the block `hash` has left the pool or a tier.
    pub fn removed(&mut self, hash: u64, medium: Medium) {
        if let Some(Open::Removed(same, hashes)) = &mut self.open
            && *same == medium
        {
            hashes.push(hash);
            return;
        }
        self.close();
        self.open = Some(Open::Removed(medium, vec![hash]));
    }

    /// Records the removal of all blocks.
    pub fn cleared(&mut self) {
        self.close();
        array(&mut self.written, 1);
        text(&mut self.written, "AllBlocksCleared");
        self.events += 1;
    }

    /// Returns the changes since the last call as a batch, dated `at` (Unix time in seconds);
    /// `None` if nothing has changed.
    pub fn finish(&mut self, at: f64) -> Option<Vec<u8>> {
        self.close();
        let count = std::mem::take(&mut self.events);
        if count == 0 {
            return None;
        }
        let mut batch = Vec::with_capacity(self.written.len() + 16);
        array(&mut batch, 3);
        batch.push(0xcb);
        batch.extend_from_slice(&at.to_be_bytes());
        array(&mut batch, count);
        batch.append(&mut self.written);
        number(&mut batch, 0); // data_parallel_rank
        Some(batch)
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else {
            return;
        };
        let out = &mut self.written;
        match open {
            Open::Stored(run) => stored(out, &run),
            Open::Copied(medium, hashes) => copied(out, medium, hashes),
            Open::Removed(medium, hashes) => removed(out, medium, hashes),
        }
        self.events += 1;
    }
}

fn stored(out: &mut Vec<u8>, run: &Run) {
    array(out, if run.salt.is_some() { 9 } else { 7 });
    text(out, "BlockStored");
    numbers(out, run.hashes.iter().copied());
    match run.parent {
        Some(parent) => number(out, parent),
        None => out.push(0xc0),
    }
    numbers(out, run.tokens.iter().map(|token| u64::from(*token)));
    number(out, run.block_size as u64);
    out.push(0xc0); // lora_id
    text(out, words(Medium::Pool).0);
    if let Some(salt) = &run.salt {
        out.push(0xc0); // lora_name
        array(out, run.hashes.len());
        for at in 0..run.hashes.len() {
            // like vLLM: a salt is an extra key of a prompt's first block
            if at == 0 && run.parent.is_none() {
                array(out, 1);
                text(out, salt);
            } else {
                out.push(0xc0);
            }
        }
    }
}

/// Encodes copied blocks as vLLM does: without tokens, because the pool's event already had them.
fn copied(out: &mut Vec<u8>, medium: Medium, hashes: Vec<u64>) {
    let (name, locality) = words(medium);
    array(out, if locality.is_some() { 13 } else { 7 });
    text(out, "BlockStored");
    numbers(out, hashes.into_iter());
    out.push(0xc0); // parent_block_hash
    array(out, 0); // token_ids
    number(out, 0); // block_size
    out.push(0xc0); // lora_id
    text(out, name);
    if let Some(locality) = locality {
        // lora_name, extra_keys, group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window
        out.extend([0xc0; 5]);
        text(out, locality);
    }
}

fn removed(out: &mut Vec<u8>, medium: Medium, hashes: Vec<u64>) {
    let (name, locality) = words(medium);
    array(out, if locality.is_some() { 5 } else { 3 });
    text(out, "BlockRemoved");
    numbers(out, hashes.into_iter());
    text(out, name);
    if let Some(locality) = locality {
        out.push(0xc0); // group_idx
        text(out, locality);
    }
}

fn numbers(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u64>) {
    array(out, values.len());
    values.for_each(|value| number(out, value));
}

fn number(out: &mut Vec<u8>, value: u64) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend([0xcc, value as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend((value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend((value as u32).to_be_bytes());
        }
        _ => {
            out.push(0xcf);
            out.extend(value.to_be_bytes());
        }
    }
}

fn array(out: &mut Vec<u8>, count: usize) {
    match count {
        0..=15 => out.push(0x90 | count as u8),
        16..=0xffff => {
            out.push(0xdc);
            out.extend((count as u16).to_be_bytes());
        }
        _ => {
            out.push(0xdd);
            out.extend((count as u32).to_be_bytes());
        }
    }
}

/// Encodes a text, truncated to 255 bytes.
fn text(out: &mut Vec<u8>, text: &str) {
    let bytes = &text.as_bytes()[..text.len().min(255)];
    match bytes.len() {
        length @ 0..=31 => out.push(0xa0 | length as u8),
        length => out.extend([0xd9, length as u8]),
    }
    out.extend_from_slice(bytes);
}
