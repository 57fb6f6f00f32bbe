//! Read-ahead: correct bytes in any order, and errors instead of a signal.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;

use crate::common::{GgufFile, Scratch, tiny};
use penstock_checkpoint::{Checkpoint, FormatError, ReadAhead, ReadCount};

/// Larger than the read-ahead window, so that readers wait for the part in use.
const LARGE: usize = 160 << 20;
const F32: u32 = 0;

#[test]
fn bytes_are_the_same_in_any_order_and_after_release() {
    for (path, readers) in [("llama3.gguf", 1), ("mistral", 3)] {
        let checkpoint = Checkpoint::open(&tiny(path)).unwrap();
        let names: Vec<&str> = checkpoint.names().collect();
        let (plain, count) = (Checkpoint::open(&tiny(path)).unwrap(), ReadCount::default());
        let mut ahead = ReadAhead::new(&checkpoint, &count);
        for name in names.iter().chain(&["absent"]).chain(&names) {
            ahead.add(name, None);
        }
        let load = || {
            for name in names.iter().rev().chain(&names) {
                assert_eq!(ahead.tensor(name)?.data, plain.tensor(name)?.data, "{name}");
                ahead.release();
            }
            Ok::<_, Problem>(())
        };
        ahead.run(readers, load).unwrap();
        let sizes = names
            .iter()
            .map(|name| plain.tensor(name).unwrap().data.len() as u64);
        assert_eq!(
            (count.total(), count.read()),
            (sizes.clone().sum(), sizes.sum())
        );
    }
}

/// Errors of a load.
#[derive(Debug)]
enum Problem {
    Format(FormatError),
    Thread,
}

impl From<FormatError> for Problem {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

impl From<io::Error> for Problem {
    fn from(_: io::Error) -> Self {
        Self::Thread
    }
}

#[test]
fn experts_are_read_one_by_one_and_nothing_twice() {
    let checkpoint = Checkpoint::open(&tiny("mixtral.gguf")).unwrap();
    let stack = checkpoint.names().find(|name| name.contains("_exps"));
    let stack = checkpoint.tensor(stack.unwrap()).unwrap();
    let (count, experts) = (ReadCount::default(), stack.shape[0]);
    let mut ahead = ReadAhead::new(&checkpoint, &count);
    for expert in [1, 0, 1] {
        ahead.add(stack.name, Some(expert));
    }
    let load = || {
        let arrival = ahead.arrival(stack.name, Some(1));
        assert!(arrival.until(stack.row_offset(stack.rows() / experts + 1)));
        // Parts that were not added are read on access.
        assert!(ahead.arrival(stack.name, Some(2)).until(usize::MAX));
        assert!(ahead.arrival(stack.name, Some(0)).until(usize::MAX));
        Ok::<_, io::Error>(())
    };
    ahead.run(2, load).unwrap();
    assert_eq!(count.read() as usize, 2 * stack.data.len() / experts);
}

/// A file of two tensors, the second of which is nearly the whole file; sparse, so holes take no
/// space.
fn large(scratch: &Scratch) -> PathBuf {
    let (rows, first) = ((LARGE >> 12) as u64, 256);
    let header = GgufFile::default()
        .tensor("first", &[64], F32, 0)
        .tensor("second", &[1 << 10, rows], F32, first)
        .build();
    let path = scratch.write("large.gguf", &header);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let whole = header.len() + first as usize + LARGE;
    file.set_len(whole as u64).unwrap();
    path
}

#[test]
fn readers_stay_near_what_is_in_use() {
    let scratch = Scratch::new("near");
    let checkpoint = Checkpoint::open(&large(&scratch)).unwrap();
    let count = ReadCount::default();
    let mut ahead = ReadAhead::new(&checkpoint, &count);
    ahead.add("first", None);
    ahead.add("second", None);
    let load = || {
        assert!(ahead.arrival("first", None).until(usize::MAX));
        while (count.read() as usize) < 128 << 20 {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!((count.read() as usize) < LARGE);
        assert!(ahead.tensor("second")?.data.iter().all(|&byte| byte == 0));
        Ok::<_, Problem>(())
    };
    ahead.run(1, load).unwrap();
    assert_eq!(count.read(), count.total());
}

#[test]
fn a_file_cut_short_is_an_error_that_names_tensor_and_byte() {
    let scratch = Scratch::new("cut");
    let path = large(&scratch);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let end = 100 << 20;
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(end).unwrap();
    let count = ReadCount::default();
    let mut ahead = ReadAhead::new(&checkpoint, &count);
    ahead.add("first", None);
    ahead.add("second", None);
    let load = || {
        let first = ahead.arrival("first", None);
        assert!(first.until(usize::MAX));
        let second = ahead.arrival("second", None);
        assert!(!second.until(usize::MAX));
        assert!(second.check().is_err() && second.check().is_err());
        ahead.tensor("second").map_err(Problem::from)
    };
    let Err(Problem::Format(error)) = ahead.run(2, load) else {
        panic!("a tensor that is not there");
    };
    let wanted = format!(
        "{}: tensor `second` at byte {end}: the file ends here",
        path.display()
    );
    assert!(error.to_string().starts_with(&wanted), "{error}");
    let error = checkpoint.fingerprint().unwrap_err().to_string();
    assert!(
        error.contains("tensor `second` at byte") && error.contains("ends here"),
        "{error}"
    );
}
