//! Converts panics of the `tokenizers` crate, caused by some damaged tokenizer.json files, to
//! errors.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `call` and converts a panic to an error.
pub(crate) fn caught<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("it gave no reason");
            Err(format!("the tokenizer failed: {text}"))
        }
    }
}
