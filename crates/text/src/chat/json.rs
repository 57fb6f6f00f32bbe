//! `tojson` as transformers defines it: Python's `json.dumps`, non-ASCII kept, nothing escaped for
//! HTML.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

/// `value | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(
    value: Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "undefined cannot be written as JSON",
        ));
    }
    let ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .or(ensure_ascii)
        .unwrap_or(false);
    let indent = options.get::<Option<usize>>("indent")?;
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut json = serde_json::to_value(&value).map_err(not_json)?;
    if sort {
        json.sort_all_objects();
    }
    let dialect = Dialect::new(ascii, indent, separators)?;
    dialect.write(&json).map_err(not_json)
}

/// `json.dumps(value, ensure_ascii=False)`.
pub(super) fn python_json(value: &serde_json::Value) -> String {
    let plain = Dialect::new(false, None, None).and_then(|d| d.write(value).map_err(not_json));
    plain.unwrap_or_default()
}

fn not_json(error: serde_json::Error) -> Error {
    Error::new(
        ErrorKind::BadSerialization,
        "value cannot be written as JSON",
    )
    .with_source(error)
}

struct Dialect {
    ascii: bool,
    indent: Option<Vec<u8>>,
    item_separator: String,
    key_separator: String,
}

impl Dialect {
    fn new(
        ascii: bool,
        indent: Option<usize>,
        separators: Option<Vec<String>>,
    ) -> Result<Self, Error> {
        let (item_separator, key_separator) = match separators.as_deref() {
            Some([item, key]) => (item.clone(), key.clone()),
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "separators must be a pair of strings",
                ));
            }
            None => (
                if indent.is_some() { "," } else { ", " }.to_owned(),
                ": ".to_owned(),
            ),
        };
        // Deeper indents than any template uses would only multiply the output.
        let indent = indent.map(|width| vec![b' '; width.min(64)]);
        Ok(Self {
            ascii,
            indent,
            item_separator,
            key_separator,
        })
    }

    fn write(&self, json: &serde_json::Value) -> Result<String, serde_json::Error> {
        let mut out = Vec::new();
        match &self.indent {
            Some(indent) => {
                let layout = PrettyFormatter::with_indent(indent);
                json.serialize(&mut Serializer::with_formatter(
                    &mut out,
                    PythonFormatter {
                        dialect: self,
                        layout,
                    },
                ))?;
            }
            None => {
                let layout = CompactFormatter;
                json.serialize(&mut Serializer::with_formatter(
                    &mut out,
                    PythonFormatter {
                        dialect: self,
                        layout,
                    },
                ))?;
            }
        }
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}

/// Line breaks and indents from `layout`, separators, numbers and escapes from `dialect`.
struct PythonFormatter<'a, F> {
    dialect: &'a Dialect,
    layout: F,
}

/// Runs the layout's separator and puts the dialect's in place of the mark it begins with.
fn separated<W: ?Sized + io::Write>(
    writer: &mut W,
    separator: &str,
    mark: u8,
    layout: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
) -> io::Result<()> {
    let mut line = Vec::new();
    layout(&mut line)?;
    if line.first() == Some(&mark) {
        writer.write_all(separator.as_bytes())?;
        line.remove(0);
    }
    writer.write_all(&line)
}

impl<F: Formatter> Formatter for PythonFormatter<'_, F> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.begin_array(writer)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        let separator = &self.dialect.item_separator;
        separated(writer, separator, b',', |line| {
            self.layout.begin_array_value(line, first)
        })
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.begin_object(writer)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        let separator = &self.dialect.item_separator;
        separated(writer, separator, b',', |line| {
            self.layout.begin_object_key(line, first)
        })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.dialect.key_separator.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.end_object_value(writer)
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.dialect.ascii {
            return writer.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        for character in fragment.chars() {
            if character.is_ascii() {
                writer.write_all(&[character as u8])?;
                continue;
            }
            for unit in character.encode_utf16(&mut units) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

/// Python's `repr` of a finite float: the shortest digits that read back, in scientific form below
/// 1e-4 and from 1e16.
pub(super) fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let power: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&power) {
        return format!("{value:?}");
    }
    let sign = if power < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", power.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::python_float;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let expected = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e300, "1.5e+300"),
            (-2.5e-7, "-2.5e-07"),
        ];
        for (value, text) in expected {
            assert_eq!(python_float(value), text);
        }
    }
}
