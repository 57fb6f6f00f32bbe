//! Shared by the properties: messages of errors, tokenizers, files, and panics that are caught.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_tokenizer::{Detokenizer, Tokenizer};

/// Bytes of the longest message about a file's contents, without the file's path.
const LONGEST_MESSAGE: usize = 8000;

const TEXTS: [&str; 4] = ["", "ab ba <s>a</s>", "é▁ \u{0}😀", "aaaaaaaaaaaaaaab"];
/// Ids as a model may give them, inside the vocabulary or not.
const IDS: [u32; 8] = [0, 3, 1, 5, 2, 4, 99, u32::MAX];

/// Replaces the panic hook of libfuzzer-sys, which aborts. The tokenizer catches panics of the
/// `tokenizers` crate; a panic that leaves a target aborts after unwinding.
pub fn keep_caught_panics() {
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
}

/// An error fits one line of a log, whatever the input contains.
pub(crate) fn check_message(error: &impl Display) {
    let text = error.to_string();
    assert!((1..=LONGEST_MESSAGE).contains(&text.len()), "{text}");
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    assert!(!text.contains(breaks), "{text:?}");
}

/// Texts encode to the same ids again or not at all, and ids decode in pieces as at once.
pub(crate) fn check_tokenizer(tokenizer: &Arc<Tokenizer>) {
    for text in TEXTS {
        match tokenizer.encode(text, true) {
            Ok(ids) => {
                assert_eq!(tokenizer.encode(text, true).expect("as before"), ids);
                check_decoding(tokenizer, &ids);
            }
            Err(error) => check_message(&error),
        }
    }
    check_decoding(tokenizer, &IDS);
}

fn check_decoding(tokenizer: &Arc<Tokenizer>, ids: &[u32]) {
    for skip_special in [false, true] {
        let whole = tokenizer.decode(ids, skip_special);
        let mut stream = Detokenizer::new(Arc::clone(tokenizer), skip_special, &[]);
        let mut pieces: String = ids.iter().map(|&id| stream.push(id)).collect();
        pieces += &stream.finish();
        if tokenizer.is_bytes() {
            // a character that is cut at the end is no part of a stream
            let cut = whole.strip_suffix(char::REPLACEMENT_CHARACTER);
            assert!(
                whole == pieces || cut == Some(&pieces),
                "{whole:?} {pieces:?}"
            );
        }
    }
}

/// A directory of one target and process, removed at the end of the thread.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(target: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("penstock-fuzz-{target}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).expect("the temporary directory is writable");
        Self(path)
    }

    /// Replaces the file `name`, by a new one: the old one may be mapped.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).expect("the temporary directory has room");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
