//! Metadata values. All integer types of the file are widened to one type, and all float types to
//! another.

use super::reader::Reader;
use crate::error::Fault;

/// Maximum length of a string value in bytes; embedded chat templates and tokenizer files are far
/// below.
const LONGEST_STRING: usize = 1 << 28;
/// Maximum array elements for which memory is reserved in advance.
const RESERVED: usize = 1 << 16;

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Bool(bool),
    /// Any integer type. A u64 above `i64::MAX` is refused during parsing.
    Int(i64),
    /// Any float type; f32 is widened exactly.
    Float(f64),
    String(String),
    Array(Array),
}

/// A metadata array; elements have one type, and arrays do not nest.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    Bools(Vec<bool>),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Strings(Vec<String>),
}

impl Array {
    pub fn len(&self) -> usize {
        match self {
            Self::Bools(items) => items.len(),
            Self::Ints(items) => items.len(),
            Self::Floats(items) => items.len(),
            Self::Strings(items) => items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// "bool", "int", "float" or "string".
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Bools(_) => "bool",
            Self::Ints(_) => "int",
            Self::Floats(_) => "float",
            Self::Strings(_) => "string",
        }
    }
}

impl Value {
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    pub fn as_int(&self) -> Option<i64> {
        if let Self::Int(value) = self {
            Some(*value)
        } else {
            None
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(value) = self {
            Some(value)
        } else {
            None
        }
    }

    pub fn as_ints(&self) -> Option<&[i64]> {
        if let Self::Array(Array::Ints(items)) = self {
            Some(items)
        } else {
            None
        }
    }

    pub fn as_floats(&self) -> Option<&[f64]> {
        if let Self::Array(Array::Floats(items)) = self {
            Some(items)
        } else {
            None
        }
    }

    pub fn as_strings(&self) -> Option<&[String]> {
        if let Self::Array(Array::Strings(items)) = self {
            Some(items)
        } else {
            None
        }
    }

    /// Reads a type code and a value of that type.
    pub(super) fn read(reader: &mut Reader<'_>, item: &str) -> Result<Self, Fault> {
        let at = reader.position();
        let kind = Kind::from_number(reader.u32(item)?, item, at)?;
        Ok(match kind {
            Kind::Bool => Self::Bool(read_bool(reader, item)?),
            Kind::String => Self::String(reader.string(LONGEST_STRING, item)?.to_owned()),
            Kind::Array => Self::Array(Array::read(reader, item)?),
            Kind::F32 | Kind::F64 => Self::Float(read_float(reader, kind, item)?),
            _ => Self::Int(read_int(reader, kind, item)?),
        })
    }
}

impl Array {
    fn read(reader: &mut Reader<'_>, item: &str) -> Result<Self, Fault> {
        let at = reader.position();
        let kind = Kind::from_number(reader.u32(item)?, item, at)?;
        let count = reader.u64(item)?;
        let count = reader.count(count, kind.smallest(), item, "array elements")?;
        Ok(match kind {
            Kind::Array => return Err(Fault::new(item, at, "arrays of arrays are not supported")),
            Kind::Bool => Self::Bools(collect(count, || read_bool(reader, item))?),
            Kind::String => Self::Strings(collect(count, || {
                Ok(reader.string(LONGEST_STRING, item)?.to_owned())
            })?),
            Kind::F32 | Kind::F64 => {
                Self::Floats(collect(count, || read_float(reader, kind, item))?)
            }
            _ => Self::Ints(collect(count, || read_int(reader, kind, item))?),
        })
    }
}

/// Value types of the file, with their codes.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    fn from_number(number: u32, item: &str, at: usize) -> Result<Self, Fault> {
        let kind = Self::ALL.into_iter().find(|kind| *kind as u32 == number);
        kind.ok_or_else(|| Fault::new(item, at, format!("value type {number} does not exist")))
    }

    /// Minimum size in bytes of a value of this type.
    fn smallest(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::String | Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Array => 12,
        }
    }
}

fn collect<T>(count: usize, mut read: impl FnMut() -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
    let mut items = Vec::with_capacity(count.min(RESERVED));
    for _ in 0..count {
        items.push(read()?);
    }
    Ok(items)
}

fn read_bool(reader: &mut Reader<'_>, item: &str) -> Result<bool, Fault> {
    let at = reader.position();
    match reader.array(item)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [byte] => Err(Fault::new(
            item,
            at,
            format!("{byte} is not a bool (0 or 1)"),
        )),
    }
}

fn read_float(reader: &mut Reader<'_>, kind: Kind, item: &str) -> Result<f64, Fault> {
    Ok(match kind {
        Kind::F32 => f32::from_le_bytes(reader.array(item)?).into(),
        _ => f64::from_le_bytes(reader.array(item)?),
    })
}

/// Reads a value of any integer type.
fn read_int(reader: &mut Reader<'_>, kind: Kind, item: &str) -> Result<i64, Fault> {
    let at = reader.position();
    Ok(match kind {
        Kind::U8 => u8::from_le_bytes(reader.array(item)?).into(),
        Kind::I8 => i8::from_le_bytes(reader.array(item)?).into(),
        Kind::U16 => u16::from_le_bytes(reader.array(item)?).into(),
        Kind::I16 => i16::from_le_bytes(reader.array(item)?).into(),
        Kind::U32 => u32::from_le_bytes(reader.array(item)?).into(),
        Kind::I32 => i32::from_le_bytes(reader.array(item)?).into(),
        Kind::U64 => {
            let value = reader.u64(item)?;
            i64::try_from(value).map_err(|_| {
                Fault::new(
                    item,
                    at,
                    format!("{value} does not fit a signed 64-bit integer"),
                )
            })?
        }
        _ => i64::from_le_bytes(reader.array(item)?),
    })
}
