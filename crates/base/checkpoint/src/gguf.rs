//! GGUF v2 and v3 headers, little-endian. Layout:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//!
//! Magic, version u32, tensor count u64, metadata count u64, metadata entries, tensor table,
//! padding to `general.alignment`, tensor data.

mod reader;
mod value;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use self::reader::Reader;
pub use self::value::{Array, Value};
use crate::DType;
use crate::error::{Fault, quoted};
use crate::tensor::stored_size;

/// Metadata by key, in key order.
pub type Metadata = BTreeMap<String, Value>;

const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: usize = 32;
const LARGEST_ALIGNMENT: i64 = 1 << 20;
/// Maximum length of a metadata key in bytes, as the format defines it.
const LONGEST_KEY: usize = 65_535;
/// Maximum length of a tensor name in bytes: keeps error messages and maps small.
const LONGEST_NAME: usize = 1024;
const MOST_DIMENSIONS: u32 = 4;
/// Minimum size in bytes of a metadata entry (empty key, one-byte value) and of a tensor entry
/// (empty name, one dimension).
const SMALLEST_ENTRY: usize = 13;
const SMALLEST_TENSOR: usize = 32;

/// One entry of the tensor table.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Byte range of the data: inside the file, aligned, and disjoint from the other tensors'
    /// ranges.
    pub range: Range<usize>,
}

/// The contents of a GGUF file before the tensor data.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufHeader {
    pub version: u32,
    pub metadata: Metadata,
    /// Entries of the tensor table, in file order.
    pub tensors: Vec<TensorInfo>,
    /// Byte range of the raw metadata entries.
    pub(crate) metadata_range: Range<usize>,
}

impl GgufHeader {
    /// Whether `bytes` start with GGUF's magic.
    pub(crate) fn is_gguf(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Parses and checks the header of a whole file. Only header bytes of `file` are read, so a
    /// memory map loads only the header's pages.
    ///
    /// # Errors
    /// The first defect: bad magic, unknown version, truncation, counts that exceed the file, names
    /// that are not UTF-8 or repeated, unsupported element types, and offsets that are misaligned,
    /// overlapping or outside the file.
    pub fn parse(file: &[u8]) -> Result<Self, Fault> {
        let mut reader = Reader::new(file);
        let version = read_version(&mut reader)?;
        let tensor_count = reader.u64("header")?;
        let entry_count = reader.u64("header")?;

        let start = reader.position();
        let (metadata, alignment) = read_metadata(&mut reader, entry_count)?;
        let metadata_range = start..reader.position();
        let mut tensors = read_tensor_table(&mut reader, tensor_count)?;
        place_tensors(
            &mut tensors,
            reader.position().next_multiple_of(alignment),
            alignment,
            file.len(),
        )?;
        Ok(Self {
            version,
            metadata,
            tensors: tensors.into_iter().map(|row| row.info).collect(),
            metadata_range,
        })
    }
}

/// An entry of the tensor table with its location for error messages. Until it is placed,
/// `info.range` starts at the stored offset, relative to the tensor data.
struct Row {
    info: TensorInfo,
    /// File offset of the entry.
    at: usize,
}

impl Row {
    fn fault(&self, problem: impl Into<String>) -> Fault {
        Fault::new(
            format!("tensor {}", quoted(&self.info.name)),
            self.at,
            problem,
        )
    }
}

fn read_version(reader: &mut Reader<'_>) -> Result<u32, Fault> {
    if reader.bytes(4, "header")? != MAGIC {
        return Err(Fault::new(
            "header",
            0,
            "not a GGUF file: the magic number is missing",
        ));
    }
    let version = reader.u32("header")?;
    match version {
        2 | 3 => Ok(version),
        _ if matches!(version.swap_bytes(), 2 | 3) => Err(Fault::new(
            "header",
            4,
            "big-endian GGUF is not supported; convert the file to little-endian",
        )),
        _ => Err(Fault::new(
            "header",
            4,
            format!("GGUF version {version} is not supported (2 and 3 are)"),
        )),
    }
}

/// Reads the metadata, and the data alignment that it declares.
fn read_metadata(reader: &mut Reader<'_>, count: u64) -> Result<(Metadata, usize), Fault> {
    let count = reader.count(count, SMALLEST_ENTRY, "header", "metadata entries")?;
    let (mut metadata, mut alignment) = (Metadata::new(), DEFAULT_ALIGNMENT);
    for i in 0..count {
        let at = reader.position();
        let key = reader
            .string(LONGEST_KEY, &format!("metadata key {i}"))?
            .to_owned();
        let item = format!("key {}", quoted(&key));
        let value = Value::read(reader, &item)?;
        if key == ALIGNMENT_KEY {
            alignment = checked_alignment(&value, &item, at)?;
        }
        if metadata.insert(key, value).is_some() {
            return Err(Fault::new(item, at, "appears twice"));
        }
    }
    Ok((metadata, alignment))
}

fn checked_alignment(value: &Value, item: &str, at: usize) -> Result<usize, Fault> {
    match *value {
        Value::Int(n) if (1..=LARGEST_ALIGNMENT).contains(&n) && n & (n - 1) == 0 => Ok(n as usize),
        _ => {
            let problem = format!("must be a power of two from 1 to {LARGEST_ALIGNMENT}");
            Err(Fault::new(item, at, problem))
        }
    }
}

fn read_tensor_table(reader: &mut Reader<'_>, count: u64) -> Result<Vec<Row>, Fault> {
    let count = reader.count(count, SMALLEST_TENSOR, "header", "tensors")?;
    let mut rows = Vec::new();
    let mut names = HashSet::new();
    for i in 0..count {
        let at = reader.position();
        let name = reader.string(LONGEST_NAME, &format!("name of tensor {i}"))?;
        let row = read_tensor(reader, name, at)?;
        if !names.insert(name) {
            return Err(row.fault("appears twice"));
        }
        rows.push(row);
    }
    Ok(rows)
}

fn read_tensor(reader: &mut Reader<'_>, name: &str, at: usize) -> Result<Row, Fault> {
    let item = format!("tensor {}", quoted(name));
    let dimensions = reader.u32(&item)?;
    if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
        return Err(Fault::new(
            item,
            at,
            format!("{dimensions} dimensions; 1 to {MOST_DIMENSIONS} are possible"),
        ));
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        shape.push(reader.usize(&item)?);
    }
    shape.reverse();
    let type_id = reader.u32(&item)?;
    let dtype = DType::from_gguf(type_id).ok_or_else(|| {
        let problem = format!(
            "GGUF type {} is not supported; readable types are {}",
            DType::name_in_gguf(type_id),
            DType::supported()
        );
        Fault::new(&item, at, problem)
    })?;
    let offset = reader.usize(&item)?;
    Ok(Row {
        info: TensorInfo {
            name: name.to_owned(),
            dtype,
            shape,
            range: offset..offset,
        },
        at,
    })
}

/// Converts stored relative offsets to checked file ranges.
fn place_tensors(
    rows: &mut [Row],
    data_start: usize,
    alignment: usize,
    file_len: usize,
) -> Result<(), Fault> {
    for row in rows.iter_mut() {
        let size =
            stored_size(row.info.dtype, &row.info.shape).map_err(|problem| row.fault(problem))?;
        let relative = row.info.range.start;
        if !relative.is_multiple_of(alignment) {
            return Err(row.fault(format!(
                "data offset {relative} is not a multiple of the alignment {alignment}"
            )));
        }
        let range = data_start
            .checked_add(relative)
            .and_then(|start| Some(start..start.checked_add(size)?));
        match range {
            Some(range) if range.end <= file_len => row.info.range = range,
            _ => {
                return Err(row.fault(format!(
                    "needs {size} bytes at {relative} after {data_start}, but the file ends at \
                     {file_len}; it is truncated or damaged"
                )));
            }
        }
    }
    refuse_overlaps(rows)
}

fn refuse_overlaps(rows: &[Row]) -> Result<(), Fault> {
    let mut by_start: Vec<&Row> = rows.iter().collect();
    by_start.sort_by_key(|row| row.info.range.start);
    for pair in by_start.windows(2) {
        if pair[1].info.range.start < pair[0].info.range.end {
            return Err(pair[1].fault(format!(
                "data overlaps tensor {}",
                quoted(&pair[0].info.name)
            )));
        }
    }
    Ok(())
}
