//! tokenizer.json: an error in one line, or a tokenizer that encodes and decodes within bounds, in
//! pieces as at once.

use crate::common::{Scratch, check_message, check_tokenizer};
use penstock_tokenizer::TextModel;

thread_local!(static SCRATCH: Scratch = Scratch::new("tokenizer"));

pub fn check(json: &[u8]) {
    let opened = SCRATCH.with(|scratch| {
        scratch.write("tokenizer.json", json);
        TextModel::open(&scratch.0, None)
    });
    match opened {
        Ok(model) => check_tokenizer(&model.tokenizer),
        Err(error) => check_message(&error),
    }
}
