//! Kimi-K2's `tiktoken.model` without a tokenizer.json, compared with the tiktoken package
//! (tests/golden/make_tiktoken.py).
use std::path::{Path, PathBuf};

use penstock_tokenizer::{TextModel, Tokenizer};
use serde_json::{Value, json};

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/tiktoken.json")).unwrap()
}

/// A test's temporary directory, removed at the end of the test.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn directory(test: &str, ranks: &str, config: &Value) -> Scratch {
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("tiktoken.model"), ranks).unwrap();
    std::fs::write(path.join("tokenizer_config.json"), config.to_string()).unwrap();
    Scratch(path)
}

fn opened(scratch: &Scratch) -> Result<TextModel, String> {
    TextModel::open(&scratch.0, None).map_err(|error| error.to_string())
}

fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, true).unwrap()
}

#[test]
fn ids_are_those_of_the_tiktoken_package() {
    let golden = golden();
    let scratch = directory("ids", golden["model"].as_str().unwrap(), &golden["config"]);
    let tokenizer = opened(&scratch).unwrap().tokenizer;
    for case in golden["cases"].as_array().unwrap() {
        let text = case[0].as_str().unwrap();
        let want: Vec<u32> = serde_json::from_value(case[1].clone()).unwrap();
        assert_eq!(ids(&tokenizer, text), want, "{text:?}");
        assert_eq!(tokenizer.decode(&want, false), text);
    }
}

#[test]
fn special_tokens_follow_the_ranks_by_name_or_by_number() {
    let golden = golden();
    let ranks = golden["model"].as_str().unwrap();
    let first = ranks.lines().count() as u32;
    let scratch = directory("special", ranks, &golden["config"]);
    let tokenizer = opened(&scratch).unwrap().tokenizer;
    assert_eq!(tokenizer.vocab_size() as u32, first + 256);
    assert_eq!(tokenizer.bos(), Some(first));
    assert_eq!(tokenizer.eos(), Some(first + 1));
    assert!(tokenizer.is_special(first + 2) && !tokenizer.is_special(first - 1));
    assert_eq!(tokenizer.token_text(first + 2), "<|im_end|>");
    let reserved = format!("<|reserved_token_{}|>", first + 100);
    assert_eq!(ids(&tokenizer, &reserved), [first + 100]);
    assert_eq!(tokenizer.decode(&[first + 2], true), "");
}

#[test]
fn a_damaged_file_and_another_class_are_refused() {
    let golden = golden();
    let (ranks, config) = (golden["model"].as_str().unwrap(), &golden["config"]);
    let with = |from: &str, to: &str| ranks.replacen(from, to, 1);
    let mut other = config.clone();
    other["tokenizer_class"] = json!("QWenTokenizer");
    let mut code = config.clone();
    code["auto_map"] = json!({"AutoTokenizer": ["tokenization_other.TikTokenTokenizer", null]});
    let mut outside = config.clone();
    outside["added_tokens_decoder"]["7"] = json!({"content": "x"});
    let mut twice = config.clone();
    twice["added_tokens_decoder"]["441"] = json!({"content": "[BOS]"});
    let cases = [
        (with("Cw== 0\n", "Cw==\n"), config, "line 1: no rank"),
        (with("Cw== 0\n", "C!== 0\n"), config, "line 1: not base64"),
        (
            with("Cw== 0\n", "Cw== 9999999\n"),
            config,
            "line 1: not a rank",
        ),
        (with("Cw== 0\n", "Cw== 1\n"), config, "rank 1 appears twice"),
        (
            with("Cw== 0\n", "MA== 0\n"),
            config,
            "two ranks have the same token",
        ),
        (with("Cw== 0\n", "AAAA 0\n"), config, "no token for byte 11"),
        (with("MA== 1\n", ""), config, "not a rank from 0 to 438"),
        (
            ranks.to_owned(),
            &other,
            "tokenizer_class = \"QWenTokenizer\"",
        ),
        (
            ranks.to_owned(),
            &code,
            "only TikTokenTokenizer of tokenization_kimi",
        ),
        (ranks.to_owned(), &outside, "id 7 is not from 440 to 695"),
        (ranks.to_owned(), &twice, "\"[BOS]\" is two tokens"),
    ];
    for (at, (ranks, config, said)) in cases.into_iter().enumerate() {
        let scratch = directory(&format!("refused-{at}"), &ranks, config);
        let message = opened(&scratch).unwrap_err();
        assert!(message.contains(said), "{message:?} does not say {said:?}");
    }
}
