//! `Objects` in memory.

use std::collections::BTreeMap;

use penstock_kvstore::Objects;

use crate::model::assert_like_a_dictionary;
use crate::parts::identity;

fn none() -> BTreeMap<String, String> {
    BTreeMap::new()
}

#[test]
fn does_what_a_dictionary_does() {
    assert_like_a_dictionary(48, |identity| {
        Objects::open("memory:///", &none(), identity).unwrap()
    });
}

#[test]
fn what_cannot_work_is_refused_at_start() {
    let option = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    for (url, options, says) in [
        ("nonsense", none(), "nonsense"),
        ("ftp://host/x", none(), "ftp"),
        ("file:///kv", none(), "disk:"),
        ("memory:///", option("region", "x"), "\"region\""),
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
