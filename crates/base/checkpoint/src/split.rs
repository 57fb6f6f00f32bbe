//! Split GGUF files: `NAME-00001-of-00003.gguf` and the other parts.

use std::path::{Path, PathBuf};

use crate::{GgufHeader, Value};

/// Maximum number of parts.
const MOST: i64 = 99_999;

/// Paths of the other parts of a split file. `path` and `header` belong to the first part.
///
/// # Errors
/// The keys or the name are inconsistent.
pub(crate) fn siblings(path: &Path, header: &GgufHeader) -> Result<Vec<PathBuf>, String> {
    let key = |name: &str| header.metadata.get(name).and_then(Value::as_int);
    let count = key("split.count").unwrap_or(1);
    if count <= 1 {
        return Ok(Vec::new());
    }
    if count > MOST {
        return Err(format!(
            "split.count = {count}; at most {MOST} parts are read"
        ));
    }
    let number = key("split.no").unwrap_or(0) + 1;
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    let ending = |part: i64| format!("-{part:05}-of-{count:05}.gguf");
    let Some(stem) = name.strip_suffix(&ending(number)) else {
        let ending = ending(number);
        return Err(format!(
            "part {number} of {count} of a split GGUF must be named *{ending}"
        ));
    };
    if number != 1 {
        return Err(format!(
            "part {number} of {count} of a split GGUF; name the first, {stem}{}",
            ending(1)
        ));
    }
    let sibling = |part| path.with_file_name(format!("{stem}{}", ending(part)));
    Ok((2..=count).map(sibling).collect())
}

/// Checks that `part` belongs to the same file as `first`, at position `place`.
///
/// # Errors
/// The first contradicting key.
pub(crate) fn check(part: &GgufHeader, first: &GgufHeader, place: usize) -> Result<(), String> {
    let key = |header: &GgufHeader, name| header.metadata.get(name).and_then(Value::as_int);
    let (count, number) = (key(part, "split.count"), key(part, "split.no"));
    if count != key(first, "split.count") || number != i64::try_from(place).ok() {
        return Err(format!(
            "split.no = {number:?} and split.count = {count:?} where part {} is expected",
            place + 1
        ));
    }
    Ok(())
}
