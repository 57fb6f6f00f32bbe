//! Inputs that once broke a property, or nearly, keep it: `fuzz/regressions`, without a fuzzer.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use penstock_properties::TARGETS;

fn files(folder: &str) -> Vec<PathBuf> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let entries = fs::read_dir(fuzz.join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn past_findings_keep_the_properties() {
    for source in files("fuzz_targets") {
        let target = source.file_stem().unwrap().to_str().unwrap();
        let found = TARGETS.iter().find(|(name, _)| *name == target);
        let (_, check) = found.expect("TARGETS lists every target");
        for input in files(&format!("regressions/{target}")) {
            println!("{}", input.display()); // the last one is the one that fails
            check(&fs::read(input).unwrap());
        }
    }
}
