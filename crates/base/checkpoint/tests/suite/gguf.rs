//! GGUF headers: parsing, and the error for each kind of damage.

use std::path::PathBuf;

use crate::common::{GgufFile, Scratch, array, plain_gguf, string};
use penstock_checkpoint::{Array, Checkpoint, DType, GgufHeader, Value};

#[test]
fn every_value_type_is_read() {
    let file = GgufFile::default()
        .entry("u8", 0, &[200])
        .entry("i8", 1, &[0x80])
        .entry("u16", 2, &65_535u16.to_le_bytes())
        .entry("i16", 3, &(-2i16).to_le_bytes())
        .entry("u32", 4, &u32::MAX.to_le_bytes())
        .entry("i32", 5, &i32::MIN.to_le_bytes())
        .entry("f32", 6, &0.1f32.to_le_bytes())
        .entry("bool", 7, &[1])
        .entry("string", 8, &string("d\u{e9}j\u{e0}"))
        .entry("strings", 9, &array(8, &[string("a"), string("")]))
        .entry("floats", 9, &array(6, &[1.5f32.to_le_bytes().to_vec()]))
        .entry(
            "ints",
            9,
            &array(
                5,
                &[(-7i32).to_le_bytes().to_vec(), 9i32.to_le_bytes().to_vec()],
            ),
        )
        .entry("bools", 9, &array(7, &[vec![0], vec![1]]))
        .entry("u64", 10, &(i64::MAX as u64).to_le_bytes())
        .entry("i64", 11, &i64::MIN.to_le_bytes())
        .entry("f64", 12, &1e300f64.to_le_bytes());
    let metadata = GgufHeader::parse(&file.build()).unwrap().metadata;
    assert_eq!(metadata.len(), 16);
    assert_eq!(metadata["u8"], Value::Int(200));
    assert_eq!(metadata["i8"], Value::Int(-128));
    assert_eq!(metadata["u16"], Value::Int(65_535));
    assert_eq!(metadata["i16"], Value::Int(-2));
    assert_eq!(metadata["u32"].as_int(), Some(4_294_967_295));
    assert_eq!(metadata["i32"], Value::Int(-2_147_483_648));
    assert_eq!(metadata["f32"], Value::Float(0.1f32.into()));
    assert_eq!(metadata["bool"].as_bool(), Some(true));
    assert_eq!(metadata["string"].as_str(), Some("d\u{e9}j\u{e0}"));
    assert_eq!(metadata["strings"].as_strings().unwrap(), ["a", ""]);
    assert_eq!(metadata["floats"].as_floats(), Some(&[1.5][..]));
    assert_eq!(metadata["ints"].as_ints(), Some(&[-7, 9][..]));
    assert_eq!(
        metadata["bools"],
        Value::Array(Array::Bools(vec![false, true]))
    );
    assert_eq!(metadata["u64"], Value::Int(i64::MAX));
    assert_eq!(metadata["i64"], Value::Int(i64::MIN));
    assert_eq!(metadata["f64"], Value::Float(1e300));
}

#[test]
fn tensors_have_reversed_shapes_and_file_ranges() {
    for version in [2, 3] {
        let file = GgufFile {
            version,
            ..plain_gguf()
        };
        let bytes = file.build();
        let header = GgufHeader::parse(&bytes).unwrap();
        let data_start = bytes.len() - file.data.len();
        assert_eq!(header.version, version);
        let [norm, matrix] = &header.tensors[..] else {
            panic!("{:?}", header.tensors)
        };
        assert_eq!(
            (norm.name.as_str(), norm.dtype, &norm.shape[..]),
            ("norm", DType::F32, &[4][..])
        );
        assert_eq!(norm.range, data_start..data_start + 16);
        assert_eq!(
            (matrix.name.as_str(), matrix.dtype, &matrix.shape[..]),
            ("matrix", DType::Q4_1, &[3, 32][..])
        );
        assert_eq!(matrix.range, data_start + 32..data_start + 92);
    }
}

#[test]
fn a_files_own_alignment_counts() {
    let file = GgufFile {
        alignment: 64,
        ..GgufFile::default()
    }
    .entry("general.alignment", 4, &64u32.to_le_bytes())
    .tensor("a", &[1], 0, 0)
    .tensor("b", &[1], 0, 64)
    .data(vec![0; 68]);
    let bytes = file.build();
    let header = GgufHeader::parse(&bytes).unwrap();
    assert_eq!(header.tensors[0].range.start % 64, 0);
    assert_eq!(header.tensors[1].range.end, bytes.len());
}

/// Parses a file that must be refused and returns the error message.
#[track_caller]
fn refused(file: &GgufFile) -> String {
    GgufHeader::parse(&file.build()).unwrap_err().to_string()
}

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    assert!(message.contains("at byte "), "{message:?} names no offset");
}

#[test]
fn bad_headers_are_refused() {
    let with_version = |version| GgufFile {
        version,
        ..plain_gguf()
    };
    assert_says(
        &refused(&with_version(1)),
        &["header", "byte 4", "version 1"],
    );
    assert_says(
        &refused(&with_version(3u32.swap_bytes())),
        &["big-endian", "convert"],
    );
    let message = GgufHeader::parse(b"GGML0000").unwrap_err().to_string();
    assert_says(&message, &["header at byte 0", "not a GGUF file"]);
    for (tensors, entries) in [
        (u64::MAX, 3),
        (2, u64::MAX),
        (1 << 60, 3),
        (2, 1 << 60),
        (1 << 24, 1 << 24),
    ] {
        let file = GgufFile {
            tensor_count: Some(tensors),
            entry_count: Some(entries),
            ..plain_gguf()
        };
        assert_says(&refused(&file), &["header", "claims"]);
    }
}

#[test]
fn bad_metadata_is_refused() {
    let one = |key: &[u8], kind, value: &[u8]| {
        refused(
            &GgufFile::default()
                .entry(key, kind, value)
                .data(vec![0; 64]),
        )
    };
    assert_says(&one(b"k", 13, &[0]), &["key `k`", "type 13"]);
    assert_says(&one(b"k", 7, &[2]), &["key `k`", "2 is not a bool"]);
    assert_says(
        &one(b"k", 10, &u64::MAX.to_le_bytes()),
        &["key `k`", "18446744073709551615"],
    );
    assert_says(
        &one(b"k", 8, &string([0xff, 0xfe])),
        &["key `k`", "not UTF-8"],
    );
    assert_says(
        &one(b"k", 8, &u64::MAX.to_le_bytes()),
        &["key `k`", "string of 18446744073709551615 bytes"],
    );
    assert_says(
        &one(b"k", 8, &1000u64.to_le_bytes()),
        &["key `k`", "truncated"],
    );
    assert_says(
        &one(b"k", 9, &array(9, &[])),
        &["key `k`", "arrays of arrays"],
    );
    let huge_array = [&6u32.to_le_bytes()[..], &(1u64 << 62).to_le_bytes()].concat();
    assert_says(
        &one(b"k", 9, &huge_array),
        &["key `k`", "claims 4611686018427387904 array elements"],
    );
    assert_says(&one(&[0xff], 7, &[1]), &["metadata key 0", "not UTF-8"]);
    assert_says(&one(&[b'a'; 70_000], 7, &[1]), &["metadata key 0", "70000"]);
    for alignment in [0u32, 3, 48, 1 << 21] {
        assert_says(
            &one(b"general.alignment", 4, &alignment.to_le_bytes()),
            &["`general.alignment` at byte 24", "power of two"],
        );
    }
    let twice = GgufFile::default().entry("k", 7, &[1]).entry("k", 7, &[1]);
    assert_says(&refused(&twice), &["key `k`", "twice"]);
}

#[test]
fn bad_tensors_are_refused() {
    let one = |shape: &[u64], kind, offset| {
        refused(
            &GgufFile::default()
                .tensor("w", shape, kind, offset)
                .data([0; 128]),
        )
    };
    assert_says(
        &one(&[33], 8, 0),
        &["tensor `w`", "rows of 33 elements", "Q8_0"],
    );
    assert_says(
        &one(&[1 << 40, 1 << 40], 0, 0),
        &["tensor `w`", "too large"],
    );
    assert_says(&one(&[u64::MAX], 0, 0), &["tensor `w`", "too large"]);
    assert_says(
        &one(&[32, u64::MAX / 16], 8, 0),
        &["tensor `w`", "too large"],
    );
    assert_says(&one(&[4], 10, 0), &["tensor `w`", "type Q2_K", "Q4_K"]);
    assert_says(
        &one(&[1, 1, 1, 1, 1], 0, 0),
        &["tensor `w`", "5 dimensions"],
    );
    assert_says(&one(&[], 0, 0), &["tensor `w`"]);
    assert_says(
        &one(&[4], 0, 8),
        &["tensor `w`", "offset 8", "alignment 32"],
    );
    assert_says(&one(&[4], 0, 128), &["tensor `w`", "truncated"]);
    assert_says(&one(&[4], 0, u64::MAX - 31), &["tensor `w`", "truncated"]);
    assert_says(
        &one(&[33], 0, 0),
        &["tensor `w`", "needs 132 bytes", "truncated"],
    );

    let two = |second: &str, offset| {
        GgufFile::default()
            .tensor("w", &[16], 0, 0)
            .tensor(second, &[4], 0, offset)
            .data([0; 128])
    };
    assert_says(
        &refused(&two("x", 32)),
        &["tensor `x`", "overlaps tensor `w`"],
    );
    assert_says(&refused(&two("w", 64)), &["tensor `w`", "twice"]);
    let long = "n".repeat(2000);
    assert_says(
        &refused(&GgufFile::default().tensor(&long, &[4], 0, 0).data([0; 16])),
        &["tensor 0", "2000"],
    );
    let odd = GgufFile::default()
        .tensor([0xc3, 0x28], &[4], 0, 0)
        .data([0; 16]);
    assert_says(&refused(&odd), &["tensor 0", "not UTF-8"]);
    let control = GgufFile::default()
        .tensor("a\n\u{1b}[2J", &[4], 10, 0)
        .data([0; 16]);
    assert!(
        !refused(&control).contains(['\n', '\u{1b}']),
        "names are escaped in messages"
    );
}

#[test]
fn every_truncation_is_refused() {
    let whole = plain_gguf().build();
    for len in 0..whole.len() {
        assert!(
            GgufHeader::parse(&whole[..len]).is_err(),
            "{len} of {} bytes",
            whole.len()
        );
    }
}

/// A part of a split file, with one tensor of 4 numbers.
fn part(number: u16, count: u16, tensor: &str) -> Vec<u8> {
    GgufFile::default()
        .entry("split.no", 2, &number.to_le_bytes())
        .entry("split.count", 2, &count.to_le_bytes())
        .tensor(tensor, &[4], 0, 0)
        .data([number as u8 + 1; 16])
        .build()
}

#[test]
fn the_parts_of_a_split_file_are_one_checkpoint() {
    let scratch = Scratch::new("split");
    for number in 0..3 {
        let name = format!("m-{:05}-of-00003.gguf", number + 1);
        scratch.write(&name, part(number, 3, &format!("t{number}")));
    }
    let path = |number| scratch.path().join(format!("m-0000{number}-of-00003.gguf"));
    let checkpoint = Checkpoint::open(&path(1)).unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["t0", "t1", "t2"]);
    assert_eq!(checkpoint.gguf().unwrap().tensors.len(), 3);
    for number in 0..3u8 {
        let tensor = checkpoint.tensor(&format!("t{number}")).unwrap();
        assert_eq!(tensor.data, [number + 1; 16]);
    }
    let refused = |path: PathBuf| match Checkpoint::open(&path) {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };
    let second = refused(path(2));
    assert!(
        second.contains("name the first, m-00001-of-00003.gguf"),
        "{second}"
    );
    let renamed = scratch.write("other.gguf", part(0, 3, "t0"));
    let renamed = refused(renamed);
    assert!(
        renamed.contains("must be named *-00001-of-00003.gguf"),
        "{renamed}"
    );
    scratch.write("m-00002-of-00003.gguf", part(2, 3, "t1"));
    let misplaced = refused(path(1));
    assert!(
        misplaced.contains("where part 2 is expected"),
        "{misplaced}"
    );
    scratch.write("m-00002-of-00003.gguf", part(1, 3, "t0"));
    assert!(refused(path(1)).contains("tensor of the same name"));
    std::fs::remove_file(path(3)).unwrap();
    scratch.write("m-00002-of-00003.gguf", part(1, 3, "t1"));
    assert!(refused(path(1)).contains("m-00003-of-00003.gguf"));
}
