//! `Objects` in a directory and in memory.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use penstock_kvstore::{Objects, Tier, TierError};

use crate::model::assert_like_a_dictionary;
use crate::parts::{Scratch, assert_damage_is_noticed, identity, key, load, payload, store};

fn none() -> BTreeMap<String, String> {
    BTreeMap::new()
}

fn url(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn files(under: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(under).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path))
        } else {
            found.push(path)
        }
    }
    found
}

#[test]
fn does_what_a_dictionary_does() {
    let scratch = Scratch::new();
    assert_like_a_dictionary(48, |identity| {
        Objects::open(&url(&scratch.0), &none(), identity).unwrap()
    });
    assert_like_a_dictionary(16, |identity| {
        Objects::open("memory:///", &none(), identity).unwrap()
    });
}

#[test]
fn another_process_finds_it_under_its_documented_name() {
    let scratch = Scratch::new();
    let open = |name| Objects::open(&url(&scratch.0), &none(), &identity(name)).unwrap();
    let parts = payload(1, 3, 4096);
    store(&open("a"), &key(7, 1), &parts).unwrap();
    assert_eq!(load(&open("a"), &key(7, 1), &parts).unwrap(), parts);
    assert!(matches!(
        load(&open("b"), &key(7, 1), &parts),
        Err(TierError::Missing)
    ));
    let digest: String = identity("a")
        .digest()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let path = scratch.0.join(format!(
        "penstock-kv-1/{digest}/{}/3.h1.l0-4",
        "07".repeat(32)
    ));
    let bytes = fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"PENSTKV\n");
    assert_eq!(bytes[4096..], parts.concat());
    open("a").remove(&[7; 32]).unwrap();
    assert_eq!(files(&scratch.0), Vec::<PathBuf>::new());
}

#[test]
fn damage_is_noticed() {
    let scratch = Scratch::new();
    let tier = Objects::open(&url(&scratch.0), &none(), &identity("a")).unwrap();
    let (key, parts) = (key(1, 0), payload(2, 3, 4096));
    let length = 4096 + 3 * 4096;
    store(&tier, &key, &parts).unwrap();
    for at in [0, 9, 50, 90, 100, 200, 4090, 4096, 9000, length - 1] {
        let path = files(&scratch.0).remove(0);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 0x20;
        fs::write(&path, bytes).unwrap();
        assert_damage_is_noticed(&tier, &key, &parts, &format!("byte {at}"));
    }
    for to in [0, 1, 4095, 4096, length - 1, length + 1] {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(files(&scratch.0).remove(0))
            .unwrap();
        file.set_len(to as u64).unwrap();
        assert_damage_is_noticed(&tier, &key, &parts, &format!("{to} bytes"));
    }
}

/// A header that is whole, but of another part.
#[test]
fn a_part_under_the_name_of_another_is_damage() {
    let scratch = Scratch::new();
    let tier = Objects::open(&url(&scratch.0), &none(), &identity("a")).unwrap();
    let parts = payload(2, 3, 4096);
    store(&tier, &key(1, 0), &parts).unwrap();
    let first = files(&scratch.0).remove(0);
    fs::copy(&first, first.with_file_name("3.h1.l0-4")).unwrap();
    assert_damage_is_noticed(&tier, &key(1, 1), &parts, "copied");
    let file = fs::OpenOptions::new().write(true).open(&first).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    assert_damage_is_noticed(&tier, &key(1, 0), &parts, "zeros");
}

#[test]
fn what_cannot_work_is_refused_at_start() {
    let scratch = Scratch::new();
    let option = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let here = url(&scratch.0);
    let missing = url(&scratch.0.join("missing"));
    for (url, options, says) in [
        ("nonsense", none(), "nonsense"),
        ("ftp://host/x", none(), "ftp"),
        (missing.as_str(), none(), "must exist"),
        (here.as_str(), option("region", "x"), "\"region\""),
        ("s3://bucket/x", option("regoin", "x"), "\"regoin\""),
        (
            "s3://bucket/x",
            option("proxy_url", "http://x"),
            "\"proxy_url\"",
        ),
        ("s3://bucket/x", option("timeout_s", "soon"), "\"soon\""),
        ("s3://bucket/x", option("timeout_s", "0"), "\"0\""),
        (
            "s3://bucket/x",
            option("ca_file", "/no/such/file"),
            "/no/such/file",
        ),
    ] {
        let Err(error) = Objects::open(url, &options, &identity("a")) else {
            panic!("{url} was opened")
        };
        assert!(error.to_string().contains(says), "{url}: {error}");
    }
}
