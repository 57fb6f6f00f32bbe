//! Decodes batches of KV events in all formats that engines send.
//!
//! Older versions of vLLM and SGLang send arrays. Newer versions of vLLM send maps, with fields
//! added at the end (`medium`, `lora_name`, `extra_keys`, groups); SGLang sends maps with a
//! `cache_salt`. All formats are accepted; unknown fields and events are skipped.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

use crate::msgpack::{Malformed, Reader, Token};

/// An engine's hash of a block, combined with the number of the block's KV group (of layers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u128);

/// Storage medium of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// The KV pool used by steps.
    Pool,
    /// Host memory.
    Ram,
    Disk,
    /// Storage shared by several replicas.
    Shared,
}

impl Medium {
    pub const ALL: [Self; 4] = [Self::Pool, Self::Ram, Self::Disk, Self::Shared];

    /// The medium for an engine's `name`; without a name, the KV pool. vLLM's `STORAGE` is a disk
    /// if its locality is `LOCAL`.
    fn named(name: &[u8], locality: &[u8]) -> Self {
        let name = name.to_ascii_uppercase();
        let has = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
        match () {
            () if name.is_empty() || has(b"GPU") || has(b"DEVICE") => Self::Pool,
            () if has(b"CPU") || has(b"HOST") || has(b"RAM") => Self::Ram,
            () if name == b"STORAGE" && locality == b"LOCAL" => Self::Disk,
            () if has(b"DISK") || has(b"SSD") || has(b"NVME") || has(b"FS") => Self::Disk,
            () => Self::Shared,
        }
    }
}

/// Consecutive blocks that were stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub hashes: Vec<BlockHash>,
    /// The preceding block; `None` at the start of a prompt.
    pub parent: Option<BlockHash>,
    /// Tokens of all blocks; empty if an earlier event contained them.
    pub tokens: Vec<u32>,
    pub block_size: usize,
    /// Name of the adapter. For engines that send a number instead, the number in brackets.
    pub adapter: Option<String>,
    pub medium: Medium,
    /// Per block, a hash of the inputs other than tokens (cache salt, image) that affect its name;
    /// 0: no such inputs. Missing entries are 0.
    pub extra: Vec<u64>,
    /// The layers of these blocks have sliding-window attention, so the blocks alone do not form a
    /// complete prefix.
    pub windowed: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Stored(Stored),
    Removed {
        hashes: Vec<BlockHash>,
        medium: Medium,
    },
    /// All blocks were removed.
    Cleared,
}

/// The changes of an engine's prefix cache in one step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Batch {
    /// Unix time in seconds.
    pub at: f64,
    pub events: Vec<Event>,
}

impl Batch {
    /// # Errors
    /// [`Malformed`]
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        let batch = Fields::read(&mut reader)?;
        let at = match batch.get(0, "ts").map(|mut value| value.next()) {
            Some(Ok(Token::Float(at))) => at,
            Some(Ok(Token::Unsigned(at))) => at as f64,
            _ => return Err(Malformed("a batch begins with its time")),
        };
        let missing = Malformed("a batch has no events");
        let mut list = batch.get(1, "events").ok_or(missing)?;
        let mut events = Vec::new();
        for _ in 0..list.list()? {
            events.extend(event(&Fields::read(&mut list)?)?);
        }
        Ok(Self { at, events })
    }
}

/// Fields of a batch or an event: in an array by position, in a map by name.
struct Fields<'a> {
    named: bool,
    values: Vec<(&'a [u8], Reader<'a>)>,
}

/// Sanity bound for the number of fields.
const MOST_FIELDS: usize = 64;

impl<'a> Fields<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let (named, count) = match reader.next()? {
            Token::Array(count) => (false, count),
            Token::Map(count) => (true, count),
            _ => return Err(Malformed("an array or a map is expected")),
        };
        if count > MOST_FIELDS {
            return Err(Malformed("it has too many fields"));
        }
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            let name: &[u8] = match named {
                false => b"",
                true => match reader.next()? {
                    Token::Text(name) => name,
                    _ => return Err(Malformed("a name is expected")),
                },
            };
            values.push((name, reader.value()?));
        }
        Ok(Self { named, values })
    }

    /// The value at `place` in an array or of `name` in a map; None if it is absent or nil.
    fn get(&self, place: usize, name: &str) -> Option<Reader<'a>> {
        let found = match self.named {
            true => self.values.iter().find(|(one, _)| *one == name.as_bytes()),
            false => self.values.get(place),
        };
        found
            .map(|(_, value)| *value)
            .filter(|value| value.0 != [0xc0])
    }

    fn text(&self, place: usize, name: &str) -> Result<Option<&'a [u8]>, Malformed> {
        let Some(mut value) = self.get(place, name) else {
            return Ok(None);
        };
        match value.next()? {
            Token::Text(text) => Ok(Some(text)),
            _ => Err(Malformed("a text is expected")),
        }
    }

    fn number(&self, place: usize, name: &str) -> Result<Option<u64>, Malformed> {
        let Some(mut value) = self.get(place, name) else {
            return Ok(None);
        };
        match value.next()? {
            Token::Unsigned(number) => Ok(Some(number)),
            _ => Err(Malformed("a number is expected")),
        }
    }

    fn medium(&self, place: usize, locality: usize) -> Result<Medium, Malformed> {
        let name = self.text(place, "medium")?.unwrap_or_default();
        let locality = self.text(locality, "locality")?.unwrap_or_default();
        Ok(Medium::named(name, locality))
    }

    fn hashes(&self, group: u64) -> Result<Vec<BlockHash>, Malformed> {
        let missing = Malformed("an event has no blocks");
        let mut list = self.get(1, "block_hashes").ok_or(missing)?;
        let count = list.list()?;
        (0..count).map(|_| hash(&mut list, group)).collect()
    }
}

fn hash(reader: &mut Reader<'_>, group: u64) -> Result<BlockHash, Malformed> {
    let number = |number: u64| xxh3_128_with_seed(&number.to_le_bytes(), group);
    Ok(BlockHash(match reader.next()? {
        Token::Unsigned(value) => number(value),
        Token::Negative(value) => number(value as u64),
        Token::Bytes(bytes) | Token::Text(bytes) => xxh3_128_with_seed(bytes, group),
        _ => return Err(Malformed("the name of a block is expected")),
    }))
}

/// Decodes an event; `None` for an unknown kind.
fn event(fields: &Fields<'_>) -> Result<Option<Event>, Malformed> {
    let group = |place| {
        fields
            .number(place, "group_idx")
            .map(Option::unwrap_or_default)
    };
    Ok(Some(match fields.text(0, "type")? {
        Some(b"BlockStored") => Event::Stored(stored(fields, group(9)?)?),
        Some(b"BlockRemoved") => Event::Removed {
            hashes: fields.hashes(group(3)?)?,
            medium: fields.medium(2, 4)?,
        },
        Some(b"AllBlocksCleared") => Event::Cleared,
        _ => return Ok(None),
    }))
}

fn stored(fields: &Fields<'_>, group: u64) -> Result<Stored, Malformed> {
    let parent = fields.get(2, "parent_block_hash");
    let name_of_adapter = fields.text(7, "lora_name")?;
    let name = name_of_adapter.map(|name| String::from_utf8_lossy(name).into_owned());
    let number = fields.number(5, "lora_id")?;
    let kind = fields.text(10, "kv_cache_spec_kind")?.unwrap_or(b"full");
    let has = |part: &[u8]| kind.windows(part.len()).any(|window| window == part);
    Ok(Stored {
        hashes: fields.hashes(group)?,
        parent: parent.map(|mut one| hash(&mut one, group)).transpose()?,
        tokens: tokens(fields)?,
        block_size: fields.number(4, "block_size")?.unwrap_or(0) as usize,
        adapter: name.or_else(|| number.map(|id| format!("[{id}]"))),
        medium: fields.medium(6, 12)?,
        extra: extra(fields, name_of_adapter)?,
        windowed: !has(b"full") && !has(b"mla"),
    })
}

fn tokens(fields: &Fields<'_>) -> Result<Vec<u32>, Malformed> {
    let Some(mut list) = fields.get(3, "token_ids") else {
        return Ok(Vec::new());
    };
    let count = list.list()?;
    let mut tokens = Vec::with_capacity(count);
    for _ in 0..count {
        match list.next()? {
            Token::Unsigned(id) => tokens.push(id as u32),
            _ => return Err(Malformed("a token id is expected")),
        }
    }
    Ok(tokens)
}

/// Extra hash of each block. Excludes the adapter's name, which engines repeat in the extra keys.
fn extra(fields: &Fields<'_>, adapter: Option<&[u8]>) -> Result<Vec<u64>, Malformed> {
    let Some(mut list) = fields.get(8, "extra_keys") else {
        // SGLang's format: only the first block has the salt, later blocks inherit it from their
        // parent
        let begins = fields.get(2, "parent_block_hash").is_none();
        let salt = fields.text(usize::MAX, "cache_salt")?;
        return Ok(salt.filter(|_| begins).map(xxh3_64).into_iter().collect());
    };
    let count = list.list()?;
    let mut extra = Vec::with_capacity(count);
    for _ in 0..count {
        let value = list.value()?;
        let nothing = matches!(value.0, [0xc0] | [0x90]) || is_only(value, adapter);
        extra.push(if nothing { 0 } else { xxh3_64(value.0) });
    }
    Ok(extra)
}

/// Whether the list consists of this text only.
fn is_only(mut list: Reader<'_>, text: Option<&[u8]>) -> bool {
    let one = list.next() == Ok(Token::Array(1));
    one && matches!(list.next(), Ok(Token::Text(found)) if Some(found) == text)
}

#[cfg(test)]
mod tests;
