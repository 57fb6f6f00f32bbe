//! The default model compared with ids and texts from other implementations.

use crate::common;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_tokenizer::{Conversation, Detokenizer, TextModel};
use serde_json::{Value, json};

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Our prompt ids of an entry in the reference files. `chat` is a flag in one file and the text in
/// the other.
fn prompt_ids(model: &TextModel, entry: &Value) -> Vec<u32> {
    let prompt = entry["prompt"].as_str().unwrap();
    if entry["chat"].as_bool() == Some(false) || entry["chat"].is_null() {
        return model.tokenizer.encode(prompt, true).unwrap();
    }
    let messages = json!([{"role": "user", "content": prompt}]);
    let prompt = model.render(&Conversation::of(&messages), true).unwrap();
    model.encode_rendered(&prompt).unwrap()
}

#[test]
fn prompts_have_the_ids_of_transformers() {
    let Some(model) = common::model() else { return };
    for file in ["greedy_ref.json", "smollm2_greedy.json"] {
        let Some(entries) = common::reference(file) else {
            return;
        };
        for entry in entries.as_array().unwrap() {
            assert_eq!(
                prompt_ids(model, entry),
                ids(&entry["prompt_ids"]),
                "{file}: {}",
                entry["prompt"]
            );
        }
    }
}

#[test]
fn answers_have_the_text_of_transformers() {
    let Some(model) = common::model() else { return };
    for file in ["greedy_ref.json", "smollm2_greedy.json"] {
        let Some(entries) = common::reference(file) else {
            return;
        };
        for entry in entries.as_array().unwrap() {
            let (out, text) = (ids(&entry["out_ids"]), entry["text"].as_str().unwrap());
            let whole = [false, true].map(|skip| model.tokenizer.decode(&out, skip));
            assert!(
                whole.iter().any(|whole| whole == text),
                "{whole:?} is not {text:?}"
            );
            let mut stream = Detokenizer::new(
                Arc::clone(&model.tokenizer),
                true,
                &ids(&entry["prompt_ids"]),
            );
            let streamed: String = out.iter().map(|&id| stream.push(id)).collect();
            assert_eq!(streamed + &stream.finish(), whole[1]);
        }
    }
}

/// The golden ids come from a second implementation of the algorithm; see
/// tests/golden/make_golden.py.
#[test]
fn hostile_texts_have_the_golden_ids() {
    let Some(model) = common::model() else { return };
    let golden: Value = serde_json::from_str(include_str!("../golden/smollm2.json")).unwrap();
    let cases = golden.as_array().unwrap();
    assert!(cases.len() >= 60);
    for case in cases {
        let (text, expected) = (case["text"].as_str().unwrap(), ids(&case["ids"]));
        assert_eq!(
            model.tokenizer.encode(text, false).unwrap(),
            expected,
            "{text:?}"
        );
        let decoded = model.tokenizer.decode(&expected, false);
        assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{text:?}");
    }
}

#[test]
fn the_default_model_has_its_special_tokens() {
    let Some(tokenizer) = common::tokenizer() else {
        return;
    };
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.vocab_size()),
        (Some(1), Some(2), 49152)
    );
    assert_eq!(tokenizer.token_text(2), "<|im_end|>");
    assert!(
        tokenizer.is_special(2) && !tokenizer.is_special(504) && !tokenizer.is_special(u32::MAX)
    );
    assert_eq!(tokenizer.decode(&[1, 504, 2, 9_999_999], true), "The");
    assert_eq!(
        tokenizer.decode(&[1, 504, 2], false),
        "<|im_start|>The<|im_end|>"
    );
    assert_eq!(tokenizer.token_bytes(9_999_999), None);
}

/// The whole server starts within two seconds; the generous bound here detects a change of
/// complexity even on a busy machine.
#[test]
fn opening_is_fast() {
    let Some(path) = common::model_path() else {
        return;
    };
    let times = (0..5).map(|_| {
        let start = Instant::now();
        TextModel::open(&path, None).unwrap();
        start.elapsed()
    });
    let best = times.min().unwrap();
    println!("tokenizer and template opened in {best:?} (best of 5)");
    assert!(best < Duration::from_millis(1500), "{best:?}");
}
