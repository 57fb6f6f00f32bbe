//! Safetensors files, shards and directories: parsing, and the error for each kind of damage.

use crate::common::{Scratch, safetensors};
use penstock_checkpoint::{Checkpoint, DType, FormatError};

const GOOD: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;

/// Opens a file with this header and `data` zero bytes; returns the error message.
#[track_caller]
fn refused(scratch: &Scratch, header: &str, data: usize) -> String {
    let path = scratch.write("model.safetensors", safetensors(header, &vec![0; data]));
    Checkpoint::open(&path)
        .err()
        .unwrap_or_else(|| panic!("accepted {header}"))
        .to_string()
}

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts.iter().chain(&["model.safetensors"]) {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
}

#[test]
fn tensors_are_read_from_a_file_and_from_its_directory() {
    let scratch = Scratch::new("read");
    let file = scratch.write(
        "model.safetensors",
        safetensors(GOOD, &(0..16).collect::<Vec<u8>>()),
    );
    for path in [file.as_path(), scratch.path()] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
        assert!(
            checkpoint.gguf().is_none() && checkpoint.contains("a") && !checkpoint.contains("c")
        );
        let tensor = checkpoint.tensor("b").unwrap();
        assert_eq!(
            (tensor.name, tensor.dtype, tensor.rows(), tensor.cols()),
            ("b", DType::BF16, 2, 2)
        );
        assert_eq!(tensor.row_bytes(1), [12, 13, 14, 15]);
        assert!(matches!(
            checkpoint.tensor("c"), Err(FormatError::MissingTensor { name, .. }) if name == "c"
        ));
    }
}

#[test]
fn errors_are_one_line_of_bounded_length() {
    let scratch = Scratch::new("one-line");
    let long = "x".repeat(1 << 20);
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    for member in ["a\\nb", "\\u0000", "a\u{2028}b", &long] {
        let row = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0],""#;
        let message = refused(&scratch, &format!(r#"{{"w":{row}{member}":1}}}}"#), 0);
        assert!(message.contains("unknown field"), "{message}");
        assert!(
            message.len() < 2000 && !message.contains(breaks),
            "{message:?}"
        );

        let header = format!(r#"{{"w":{{"dtype":"{member}","shape":[0],"data_offsets":[0,0]}}}}"#);
        let path = scratch.write("model.safetensors", safetensors(&header, &[]));
        let Err(error) = Checkpoint::open(&path).unwrap().tensor("w").map(drop) else {
            panic!("a type without a name")
        };
        let message = error.to_string();
        assert!(
            message.len() < 2000 && !message.contains(breaks),
            "{message:?}"
        );
    }
}

#[test]
fn foreign_types_are_refused_only_when_asked_for() {
    let scratch = Scratch::new("foreign");
    let header = r#"{"ids":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"w":{"dtype":"F16","shape":[1],"data_offsets":[8,10]}}"#;
    scratch.write("model.safetensors", safetensors(header, &[0; 10]));
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    assert_eq!(checkpoint.tensor("w").unwrap().data.len(), 2);
    assert_says(
        &checkpoint.tensor("ids").unwrap_err().to_string(),
        &["`ids`", "F64", "BF16"],
    );
}

#[test]
fn bad_headers_are_refused() {
    let scratch = Scratch::new("headers");
    assert_says(&refused(&scratch, "", 0), &["header"]);
    assert_says(&refused(&scratch, "[]", 0), &["header", "byte"]);
    assert_says(&refused(&scratch, "{\"a\":", 0), &["header", "byte 12"]);
    assert_says(&refused(&scratch, &"[".repeat(100_000), 0), &["header"]);
    assert_says(
        &refused(
            &scratch,
            &format!("{{\"a\":{}", "{\"a\":".repeat(100_000)),
            0,
        ),
        &["header"],
    );
    for bytes in [
        &[][..],
        &[1, 2, 3],
        &u64::MAX.to_le_bytes(),
        &100u64.to_le_bytes(),
    ] {
        let path = scratch.write("model.safetensors", bytes);
        assert_says(
            &Checkpoint::open(&path).err().unwrap().to_string(),
            &["header at byte 0"],
        );
    }
    let path = scratch.write(
        "model.safetensors",
        [&2u64.to_le_bytes()[..], &[0xff, 0xff]].concat(),
    );
    assert_says(
        &Checkpoint::open(&path).err().unwrap().to_string(),
        &["header at byte 8", "UTF-8"],
    );
}

#[test]
fn bad_tensors_are_refused() {
    let scratch = Scratch::new("tensors");
    let one = |body: &str, data| refused(&scratch, &format!("{{\"w\":{body}}}"), data);
    let described = |shape: &str, begin: &str, end: &str| {
        one(
            &format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}"#),
            8,
        )
    };
    assert_says(
        &described("[2]", "0", "4"),
        &["tensor `w` at byte 13", "needs 8 bytes", "has 4"],
    );
    assert_says(
        &described("[2]", "8", "0"),
        &["tensor `w`", "ends before it"],
    );
    assert_says(&described("[4]", "0", "16"), &["tensor `w`", "truncated"]);
    assert_says(
        &described("[1]", "0", "4"),
        &["at byte", "4 bytes belong to no tensor"],
    );
    assert_says(
        &described("[1]", "4", "8"),
        &["tensor `w`", "the tensor before it"],
    );
    assert_says(
        &described("[18446744073709551615,4]", "0", "8"),
        &["tensor `w`", "too large"],
    );
    assert_says(
        &described("[4611686018427387904]", "0", "8"),
        &["tensor `w`", "too large"],
    );
    assert_says(
        &described("[2]", "18446744073709551608", "18446744073709551615"),
        &["tensor `w`", "too large"],
    );
    for shape in [
        "[-2]",
        "[2.0]",
        "[NaN]",
        "[1e400]",
        "[\"2\"]",
        "[99999999999999999999]",
        "null",
        "2",
    ] {
        described(shape, "0", "8");
    }
    assert_says(&one("null", 0), &["tensor `w`"]);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_says(&one(&deep, 0), &["tensor `w`"]);
    assert_says(
        &one(r#"{"dtype":"F32","shape":[2]}"#, 8),
        &["tensor `w`", "data_offsets"],
    );
    assert_says(
        &one(
            r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1}"#,
            8,
        ),
        &["tensor `w`", "extra"],
    );
}

#[test]
fn overlaps_and_repeated_names_are_refused() {
    let scratch = Scratch::new("overlaps");
    let tensor = |name: &str, begin: usize| {
        format!(
            r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{begin},{}]}}"#,
            begin + 8
        )
    };
    let overlap = format!("{{{},{}}}", tensor("a", 0), tensor("b", 4));
    assert_says(
        &refused(&scratch, &overlap, 12),
        &["tensor `b`", "the tensor before it"],
    );
    let twice = format!("{{{},{}}}", tensor("a", 0), tensor("a", 8));
    assert_says(&refused(&scratch, &twice, 16), &["tensor `a`", "twice"]);
}

fn index(entries: &[(&str, &str)]) -> String {
    let map: Vec<String> = entries
        .iter()
        .map(|(name, file)| format!("{name:?}:{file:?}"))
        .collect();
    format!(
        r#"{{"metadata":{{"total_size":16}},"weight_map":{{{}}}}}"#,
        map.join(",")
    )
}

#[test]
fn shards_are_read_through_their_index() {
    let scratch = Scratch::new("shards");
    scratch.write(
        "one.safetensors",
        safetensors(
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            &[1; 4],
        ),
    );
    scratch.write(
        "two.safetensors",
        safetensors(
            r#"{"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            &[2; 4],
        ),
    );
    let write =
        |entries: &[(&str, &str)]| scratch.write("model.safetensors.index.json", index(entries));
    write(&[("a", "one.safetensors"), ("b", "two.safetensors")]);
    let checkpoint = Checkpoint::open(scratch.path()).unwrap();
    assert_eq!(checkpoint.tensor("a").unwrap().data, [1; 4]);
    assert_eq!(checkpoint.tensor("b").unwrap().data, [2; 4]);

    write(&[("a", "two.safetensors")]);
    let error = Checkpoint::open(scratch.path()).err().unwrap().to_string();
    assert!(
        error.contains("two.safetensors") && error.contains("no tensor `a`"),
        "{error}"
    );
    write(&[("a", "three.safetensors")]);
    assert!(matches!(
        Checkpoint::open(scratch.path()),
        Err(FormatError::Io { path, .. }) if path.ends_with("three.safetensors")
    ));
}

#[test]
fn an_index_cannot_leave_its_directory() {
    let scratch = Scratch::new("traversal");
    let outside = scratch.write("secret", "");
    let outside = outside.to_str().unwrap();
    for file in [
        "../secret",
        outside,
        "a/b.safetensors",
        "./x",
        "x/",
        "",
        ".",
        "..",
        "..\\x",
        "x\0y",
    ] {
        scratch.write(
            "model.safetensors.index.json",
            index(&[("w", file)]).replace("\\0", "\\u0000"),
        );
        let error = Checkpoint::open(scratch.path()).err().unwrap().to_string();
        assert!(
            error.contains("tensor `w`") && error.contains("same directory"),
            "{file:?}: {error}"
        );
    }
    scratch.write("model.safetensors.index.json", "{\"weight_map\":3}");
    let error = Checkpoint::open(scratch.path()).err().unwrap().to_string();
    assert!(error.contains("index at byte"), "{error}");
}
