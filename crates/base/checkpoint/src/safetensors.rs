//! Safetensors headers and shard indexes. Layout:
//! <https://github.com/huggingface/safetensors#format>.
//!
//! Header length u64, then a JSON header of this length (`{name: {dtype, shape, data_offsets}}`),
//! then the data of all tensors without gaps.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Component, Path};

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::DType;
use crate::error::{Fault, quoted};
use crate::tensor::stored_size;

pub(crate) struct StoredTensor {
    pub(crate) name: String,
    /// `Err` holds the name of an unsupported type; reading the tensor is then an error.
    pub(crate) dtype: Result<DType, String>,
    pub(crate) shape: Vec<usize>,
    /// Byte range of the data in the file.
    pub(crate) range: Range<usize>,
}

/// Bytes of the length field before the JSON.
const LENGTH_BYTES: usize = 8;
/// Maximum length of the JSON header in bytes, as in the reference implementation.
const LONGEST_HEADER: u64 = 100_000_000;

/// Parses and checks the header of a whole file.
///
/// # Errors
/// The first defect: truncation, an implausible header length, invalid JSON, repeated names, sizes
/// that contradict type and shape, and data ranges that overlap, leave gaps or exceed the file.
pub(crate) fn parse(file: &[u8]) -> Result<Vec<StoredTensor>, Fault> {
    let json = header_text(file)?;
    let data_start = LENGTH_BYTES + json.len();
    let mut tensors = Vec::new();
    for (name, raw) in entries(json)? {
        if name != "__metadata__" {
            let at = file_offset(json, raw);
            tensors.push((at, tensor(name, raw, at, data_start)?));
        }
    }
    check_coverage(&mut tensors, data_start, file.len())?;
    Ok(tensors.into_iter().map(|(_, tensor)| tensor).collect())
}

fn header_text(file: &[u8]) -> Result<&str, Fault> {
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(Fault::new(
            "header",
            0,
            format!("the file has only {} bytes", file.len()),
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER || length > rest.len() as u64 {
        let problem = format!(
            "header of {length} bytes, but {} are left; the file is truncated or damaged",
            rest.len()
        );
        return Err(Fault::new("header", 0, problem));
    }
    std::str::from_utf8(&rest[..length as usize])
        .map_err(|error| Fault::new("header", LENGTH_BYTES + error.valid_up_to(), "not UTF-8"))
}

/// The top-level JSON object as a list, so that repeated names are detected.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

impl<'de> de::Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

fn entries(json: &str) -> Result<BTreeMap<String, &RawValue>, Fault> {
    let list: Entries<'_> = serde_json::from_str(json).map_err(|error| {
        let at = LENGTH_BYTES + byte_offset(json, &error);
        Fault::new("header", at, error.to_string())
    })?;
    let mut entries = BTreeMap::new();
    for (name, raw) in list.0 {
        if entries.contains_key(&name) {
            let item = format!("tensor {}", quoted(&name));
            return Err(Fault::new(item, file_offset(json, raw), "appears twice"));
        }
        entries.insert(name, raw);
    }
    Ok(entries)
}

/// File offset of a slice of the header's JSON.
fn file_offset(json: &str, raw: &RawValue) -> usize {
    LENGTH_BYTES + (raw.get().as_ptr() as usize - json.as_ptr() as usize)
}

/// Byte offset of a JSON error, which has only line and column.
fn byte_offset(json: &str, error: &serde_json::Error) -> usize {
    let before: usize = json
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1))
        .map(str::len)
        .sum();
    (before + error.column().saturating_sub(1)).min(json.len())
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

fn tensor(
    name: String,
    raw: &RawValue,
    at: usize,
    data_start: usize,
) -> Result<StoredTensor, Fault> {
    let fault = |problem: String| Fault::new(format!("tensor {}", quoted(&name)), at, problem);
    let Description {
        dtype,
        shape,
        data_offsets: [begin, end],
    } = serde_json::from_str(raw.get()).map_err(|error| fault(error.to_string()))?;
    if begin > end {
        return Err(fault(format!(
            "data begins at {begin} and ends before it, at {end}"
        )));
    }
    let (Some(start), Some(stop)) = (data_start.checked_add(begin), data_start.checked_add(end))
    else {
        return Err(fault(format!("data offset {end} is too large")));
    };
    let dtype = DType::from_safetensors(&dtype).ok_or(dtype);
    if let Ok(known) = dtype {
        let size = stored_size(known, &shape).map_err(&fault)?;
        if size != end - begin {
            return Err(fault(format!(
                "{known} {shape:?} needs {size} bytes, but its data range has {}",
                end - begin
            )));
        }
    }
    Ok(StoredTensor {
        name,
        dtype,
        shape,
        range: start..stop,
    })
}

/// Sorts tensors by offset and checks that they cover the data section exactly once.
fn check_coverage(
    tensors: &mut [(usize, StoredTensor)],
    data_start: usize,
    file_len: usize,
) -> Result<(), Fault> {
    tensors.sort_by_key(|(_, tensor)| (tensor.range.start, tensor.range.end));
    let mut covered = data_start;
    for (at, tensor) in tensors.iter() {
        let fault = |problem| Fault::new(format!("tensor {}", quoted(&tensor.name)), *at, problem);
        if tensor.range.end > file_len {
            let end = tensor.range.end;
            return Err(fault(format!(
                "data ends at byte {end} of a file of {file_len}; it is truncated or damaged"
            )));
        }
        if tensor.range.start != covered {
            let start = tensor.range.start;
            return Err(fault(format!(
                "data starts at byte {start}, but the tensor before it ends at {covered}"
            )));
        }
        covered = tensor.range.end;
    }
    if covered != file_len {
        return Err(Fault::new(
            "data",
            covered,
            format!("{} bytes belong to no tensor", file_len - covered),
        ));
    }
    Ok(())
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Parses a `model.safetensors.index.json`: tensor name to shard file name. File names must be
/// plain names, so that they cannot refer outside the checkpoint's directory.
pub(crate) fn parse_index(text: &str) -> Result<BTreeMap<String, String>, Fault> {
    let index: Index = serde_json::from_str(text)
        .map_err(|error| Fault::new("index", byte_offset(text, &error), error.to_string()))?;
    for (name, file) in &index.weight_map {
        if !is_plain_name(file) {
            let problem = format!(
                "shard {} is not the name of a file in the same directory",
                quoted(file)
            );
            return Err(Fault::new(format!("tensor {}", quoted(name)), 0, problem));
        }
    }
    Ok(index.weight_map)
}

fn is_plain_name(file: &str) -> bool {
    let mut components = Path::new(file).components();
    let single = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(part)), None) if part == file
    );
    single && !file.contains(['\\', '\0', ':'])
}
