//! Tokenizers from synthetic, invalid and hostile GGUF metadata.

use penstock_checkpoint::{Array, Metadata, Value as Field};
use penstock_tokenizer::{TextError, TextModel};
use serde_json::Value;

fn strings(texts: &[&str]) -> Field {
    Field::Array(Array::Strings(
        texts.iter().map(|text| text.to_string()).collect(),
    ))
}

fn string(text: &str) -> Field {
    Field::String(text.to_owned())
}

/// A byte-level vocabulary of five tokens: control, letters, one merge, user-defined.
fn small_bpe() -> Metadata {
    let tokens = strings(&["<s>", "a", "b", "ab", "[x y]"]);
    Metadata::from(
        [
            ("tokenizer.ggml.model", string("gpt2")),
            ("tokenizer.ggml.pre", string("gpt-2")),
            ("tokenizer.ggml.tokens", tokens),
            (
                "tokenizer.ggml.token_type",
                Field::Array(Array::Ints(vec![3, 1, 1, 1, 4])),
            ),
            ("tokenizer.ggml.merges", strings(&["a b"])),
            ("tokenizer.ggml.bos_token_id", Field::Int(0)),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    )
}

fn with(key: &str, value: Field) -> Metadata {
    let mut metadata = small_bpe();
    metadata.insert(key.to_owned(), value);
    metadata
}

fn encode(metadata: &Metadata, text: &str, add_special: bool) -> Vec<u32> {
    TextModel::from_gguf(metadata, None)
        .unwrap()
        .tokenizer
        .encode(text, add_special)
        .unwrap()
}

#[test]
fn special_and_user_defined_tokens_are_matched_before_merges() {
    let model = TextModel::from_gguf(&small_bpe(), None).unwrap();
    let ids = model.tokenizer.encode("ab<s>a[x y]b", false).unwrap();
    assert_eq!(ids, [3, 0, 1, 4, 2]);
    assert_eq!(model.tokenizer.decode(&ids, false), "ab<s>a[x y]b");
    assert_eq!(model.tokenizer.decode(&ids, true), "aba[x y]b");
}

#[test]
fn bos_follows_the_key_and_then_the_model_type() {
    assert_eq!(encode(&small_bpe(), "ab", true), [3]);
    let asked = with("tokenizer.ggml.add_bos_token", Field::Bool(true));
    assert_eq!(encode(&asked, "ab", true), [0, 3]);
    assert_eq!(encode(&asked, "ab", false), [3]);
    let llama = with("tokenizer.ggml.pre", string("llama-bpe"));
    assert_eq!(encode(&llama, "ab", true), [0, 3]);
    let mut declined = llama;
    declined.insert(
        "tokenizer.ggml.add_bos_token".to_owned(),
        Field::Bool(false),
    );
    assert_eq!(encode(&declined, "ab", true), [3]);
    let mut eos = small_bpe();
    eos.insert("tokenizer.ggml.eos_token_id".to_owned(), Field::Int(0));
    eos.insert("tokenizer.ggml.add_eos_token".to_owned(), Field::Bool(true));
    assert_eq!(encode(&eos, "ab", true), [3, 0]);
}

#[test]
fn qwen2_composes_characters_first() {
    let tokens = strings(&["Ã", "©", "e", "Ì", "ģ"]);
    let mut metadata = with("tokenizer.ggml.tokens", tokens);
    metadata.insert(
        "tokenizer.ggml.token_type".to_owned(),
        Field::Array(Array::Ints(vec![1; 5])),
    );
    metadata.insert("tokenizer.ggml.merges".to_owned(), strings(&[]));
    assert_eq!(encode(&metadata, "e\u{301}", false), [2, 3, 4]);
    for name in ["qwen2", "deepseek-r1-qwen"] {
        metadata.insert("tokenizer.ggml.pre".to_owned(), string(name));
        assert_eq!(encode(&metadata, "e\u{301}", false), [0, 1], "{name}");
    }
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let model =
        TextModel::from_gguf(&with("tokenizer.ggml.model", string("t5")), None).unwrap_err();
    assert!(matches!(&model, TextError::UnknownTokenizerModel { name } if name == "t5"));
    let pre =
        TextModel::from_gguf(&with("tokenizer.ggml.pre", string("default")), None).unwrap_err();
    assert!(
        pre.to_string().contains("\"default\"") && pre.to_string().contains("qwen2"),
        "{pre}"
    );
}

#[test]
fn tokens_that_end_an_answer_are_found_by_their_names() {
    let ends = |texts: &[&str], kinds: &[i64]| {
        let mut metadata = with("tokenizer.ggml.tokens", strings(texts));
        let kinds = Field::Array(Array::Ints(kinds.to_vec()));
        metadata.insert("tokenizer.ggml.token_type".to_owned(), kinds);
        TextModel::end_tokens(&metadata)
    };
    assert_eq!(
        ends(&["a", "<end_of_turn>", "<eos>", "</s>"], &[1, 4, 3, 3]),
        [1, 3]
    );
    assert_eq!(
        ends(&["</s>", "<|im_end|>", "<|endoftext|>"], &[1, 3, 3]),
        [1, 2]
    );
    // gpt-oss ends messages with `<|end|>`, and answers with other tokens.
    let harmony = ["<|end|>", "<|return|>", "<|call|>"];
    assert_eq!(ends(&harmony, &[3, 3, 3]), [1, 2]);
    assert_eq!(ends(&["<|end|>", "<|user|>"], &[3, 3]), [0]);
    // Llama 3 and 4 have separate tokens for the end of a turn and of a message that waits for a
    // tool.
    let llama3 = [
        "<|end_of_text|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    ];
    assert_eq!(ends(&llama3, &[3; 4]), [0, 1, 2]);
    let llama4 = ["<|end_of_text|>", "<|eom|>", "<|eot|>", "<|header_start|>"];
    assert_eq!(ends(&llama4, &[3; 4]), [0, 1, 2]);
    assert!(TextModel::end_tokens(&Metadata::new()).is_empty());
}

#[test]
fn wrong_metadata_is_an_error_that_names_the_key() {
    let ints = |numbers: &[i64]| Field::Array(Array::Ints(numbers.to_vec()));
    let cases = [
        ("tokenizer.ggml.tokens", string("a")),
        ("tokenizer.ggml.tokens", strings(&[])),
        ("tokenizer.ggml.token_type", ints(&[1, 1])),
        ("tokenizer.ggml.token_type", ints(&[1, 1, 1, 1, 9])),
        ("tokenizer.ggml.merges", strings(&["ab"])),
        ("tokenizer.ggml.merges", strings(&["a  b"])),
        ("tokenizer.ggml.merges", strings(&["a z"])),
        ("tokenizer.ggml.merges", strings(&["b a"])),
        ("tokenizer.ggml.merges", Field::Int(3)),
        ("tokenizer.ggml.bos_token_id", Field::Int(5)),
        ("tokenizer.ggml.bos_token_id", Field::Int(-1)),
        ("tokenizer.ggml.bos_token_id", Field::Int(1 << 40)),
        ("tokenizer.ggml.add_bos_token", Field::Int(1)),
        ("tokenizer.ggml.add_eos_token", Field::Bool(true)),
        ("tokenizer.ggml.pre", Field::Bool(true)),
        ("tokenizer.chat_template", Field::Int(1)),
    ];
    for (key, value) in cases {
        let error = TextModel::from_gguf(&with(key, value.clone()), None).unwrap_err();
        assert!(
            matches!(error, TextError::BadMetadata { .. }),
            "{key} = {value:?}: {error}"
        );
        assert!(error.to_string().contains(key), "{error}");
    }
    for key in [
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
    ] {
        let mut metadata = small_bpe();
        metadata.remove(key);
        let error = TextModel::from_gguf(&metadata, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("GGUF metadata key {key}: is missing")
        );
    }
}

/// SentencePiece metadata from tests/golden/make_spm.py, and the cases that sentencepiece encoded.
fn sentencepiece() -> (Metadata, Vec<Value>) {
    let golden: Value = serde_json::from_str(include_str!("../golden/spm.json")).unwrap();
    let list = |name: &str| golden[name].clone();
    let metadata = [
        ("tokenizer.ggml.model", string("llama")),
        (
            "tokenizer.ggml.tokens",
            Field::Array(Array::Strings(
                serde_json::from_value(list("tokens")).unwrap(),
            )),
        ),
        (
            "tokenizer.ggml.scores",
            Field::Array(Array::Floats(
                serde_json::from_value(list("scores")).unwrap(),
            )),
        ),
        (
            "tokenizer.ggml.token_type",
            Field::Array(Array::Ints(serde_json::from_value(list("types")).unwrap())),
        ),
        ("tokenizer.ggml.bos_token_id", Field::Int(1)),
    ];
    (
        Metadata::from(metadata.map(|(key, value)| (key.to_owned(), value))),
        golden["cases"].as_array().unwrap().clone(),
    )
}

#[test]
fn sentencepiece_ids_are_sentencepieces_own() {
    let (metadata, cases) = sentencepiece();
    let tokenizer = TextModel::from_gguf(&metadata, None).unwrap().tokenizer;
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{text:?}");
        assert_eq!(
            tokenizer.decode(&expected, true),
            case["decoded"].as_str().unwrap(),
            "{text:?}"
        );
        let with_bos: Vec<u32> = std::iter::once(1).chain(expected).collect();
        assert_eq!(tokenizer.encode(text, true).unwrap(), with_bos, "{text:?}");
    }
}

#[test]
fn sentencepiece_without_space_prefix_keeps_the_text() {
    let (mut metadata, _) = sentencepiece();
    metadata.insert(
        "tokenizer.ggml.add_space_prefix".to_owned(),
        Field::Bool(false),
    );
    let tokenizer = TextModel::from_gguf(&metadata, None).unwrap().tokenizer;
    for text in ["hello world", " hello", "", "  "] {
        assert_eq!(
            tokenizer.decode(&tokenizer.encode(text, false).unwrap(), true),
            text
        );
    }
}

#[test]
fn sentencepiece_variants_that_are_not_built_are_refused() {
    let floats = |value: f64, count: usize| Field::Array(Array::Floats(vec![value; count]));
    let cases = [
        ("tokenizer.ggml.remove_extra_whitespaces", Field::Bool(true)),
        (
            "tokenizer.ggml.precompiled_charsmap",
            Field::Array(Array::Ints(vec![1])),
        ),
        ("tokenizer.ggml.scores", floats(0.0, 3)),
        ("tokenizer.ggml.scores", floats(-1.0, 900)),
        ("tokenizer.ggml.scores", floats(f64::NAN, 900)),
    ];
    for (key, value) in cases {
        let (mut metadata, _) = sentencepiece();
        metadata.insert(key.to_owned(), value);
        let error = TextModel::from_gguf(&metadata, None).unwrap_err();
        assert!(
            matches!(error, TextError::BadMetadata { .. }) && error.to_string().contains(key),
            "{error}"
        );
    }
}
