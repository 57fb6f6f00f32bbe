//! Streamed text compared with the text of all ids at once.

use crate::common;
use std::path::Path;
use std::sync::Arc;

use penstock_tokenizer::{Detokenizer, TextModel, Tokenizer};
use proptest::prelude::*;

fn stream(tokenizer: &Arc<Tokenizer>, ids: &[u32], skip_special: bool) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(Arc::clone(tokenizer), skip_special, &[]);
    let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

/// The text of `ids` without an incomplete character at the end.
fn whole(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let shown = ids
        .iter()
        .filter(|&&id| !(skip_special && tokenizer.is_special(id)));
    let bytes: Vec<u8> = shown
        .flat_map(|&id| tokenizer.token_bytes(id).unwrap_or_default().into_owned())
        .collect();
    let cut = (1..=3.min(bytes.len())).rev().find(|length| {
        let tail = std::str::from_utf8(&bytes[bytes.len() - length..]);
        tail.is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    });
    let mut text = tokenizer.decode(ids, skip_special);
    for _ in 0..cut.unwrap_or(0) {
        text = text
            .strip_suffix('\u{FFFD}')
            .map_or(text.clone(), str::to_owned);
        if tokenizer.is_bytes() {
            break; // one replacement character for all of its bytes
        }
    }
    text
}

/// A tokenizer from a tokenizer.json with this decoder and vocabulary; unknown text is `<unk>`.
fn small_tokenizer(name: &str, decoder: &str, vocabulary: &[&str]) -> Arc<Tokenizer> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let ids: serde_json::Map<String, serde_json::Value> = vocabulary
        .iter()
        .enumerate()
        .map(|(id, text)| (text.to_string(), id.into()))
        .collect();
    let file = serde_json::json!({
        "version": "1.0", "added_tokens": [],
        "decoder": serde_json::from_str::<serde_json::Value>(decoder).unwrap(),
        "model": {"type": "WordLevel", "vocab": ids, "unk_token": vocabulary[0]}
    });
    std::fs::write(directory.join("tokenizer.json"), file.to_string()).unwrap();
    TextModel::open(&directory, None).unwrap().tokenizer
}

const PIECES: [&str; 12] = [
    "<unk>", "▁", "▁a", "b", "<0xE2>", "<0x82>", "<0xAC>", "<0x20>", "▁▁", "é", "🦊", "<0xFF>",
];
const WORDS: [&str; 8] = ["[UNK]", "un", "##able", "##é", "word", "🦊", "##s", "x"];

const LLAMA_DECODER: &str = r#"{"type":"Sequence","decoders":[
    {"type":"Replace","pattern":{"String":"▁"},"content":" "},
    {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}"#;
const METASPACE_DECODER: &str =
    r#"{"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}"#;
const FALLBACK_METASPACE_DECODER: &str = r#"{"type":"Sequence","decoders":[
    {"type":"ByteFallback"},
    {"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true}]}"#;
const WORDPIECE_DECODER: &str = r###"{"type":"WordPiece","prefix":"##","cleanup":false}"###;

proptest! {
    #[test]
    fn random_ids_of_the_default_model(
        ids in prop::collection::vec(0u32..49200, 0..60),
        skip: bool,
    ) {
        let Some(tokenizer) = common::tokenizer() else { return Ok(()) };
        prop_assert_eq!(stream(&tokenizer, &ids, skip).concat(), whole(&tokenizer, &ids, skip));
    }

    #[test]
    fn texts_come_back_as_they_were(text in "\\PC{0,40}|[\u{1F300}-\u{1FAFF}\u{300}-\u{36F}一-龥 \
        \n]{0,40}") {
        let Some(tokenizer) = common::tokenizer() else { return Ok(()) };
        let ids = tokenizer.encode(&text, false).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids, false), text.clone());
        let pieces = stream(&tokenizer, &ids, false);
        // Valid text never contains a replacement character in any piece: no character was split.
        let broken = pieces.iter().any(|piece| piece.contains(char::REPLACEMENT_CHARACTER));
        prop_assert_eq!(broken, text.contains(char::REPLACEMENT_CHARACTER));
        prop_assert_eq!(pieces.concat(), text);
    }

    #[test]
    fn byte_fallback_pieces(ids in prop::collection::vec(0u32..12, 0..40)) {
        let tokenizer = small_tokenizer("byte_fallback", LLAMA_DECODER, &PIECES);
        prop_assert_eq!(stream(&tokenizer, &ids, true).concat(), whole(&tokenizer, &ids, true));
    }

    #[test]
    fn metaspace_pieces(ids in prop::collection::vec(0u32..12, 0..40)) {
        let tokenizer = small_tokenizer("metaspace", METASPACE_DECODER, &PIECES);
        prop_assert_eq!(stream(&tokenizer, &ids, true).concat(), tokenizer.decode(&ids, true));
    }

    #[test]
    fn wordpiece_pieces(ids in prop::collection::vec(0u32..8, 0..40)) {
        let tokenizer = small_tokenizer("wordpiece", WORDPIECE_DECODER, &WORDS);
        prop_assert_eq!(stream(&tokenizer, &ids, true).concat(), tokenizer.decode(&ids, true));
    }
}

#[test]
fn a_character_of_several_tokens_comes_whole() {
    let Some(tokenizer) = common::tokenizer() else {
        return;
    };
    for text in ["🦊", "漢", "👨‍👩‍👧‍👦", "𝔘", "e\u{301}"] {
        let ids = tokenizer.encode(text, false).unwrap();
        let pieces = stream(&tokenizer, &ids, true);
        assert_eq!(pieces.concat(), text);
        assert_eq!(
            pieces.last().map(String::as_str),
            Some(""),
            "{text}: nothing was left for the end"
        );
    }
    assert!(
        tokenizer.encode("🦊", false).unwrap().len() > 1,
        "the fox must be cut by this vocabulary"
    );
}

#[test]
fn an_unfinished_character_is_no_text() {
    let Some(tokenizer) = common::tokenizer() else {
        return;
    };
    let ids = tokenizer.encode("a\u{FFFD}🦊", false).unwrap();
    for end in 0..3 {
        let pieces = stream(&tokenizer, &ids[..ids.len() - end], true);
        let text = ["a\u{FFFD}🦊", "a\u{FFFD}"][end.min(1)];
        assert_eq!(pieces.concat(), text, "{end} tokens too few");
    }
}

#[test]
fn an_unfinished_character_of_the_pipeline_is_no_text() {
    let tokenizer = small_tokenizer("cut_metaspace", FALLBACK_METASPACE_DECODER, &PIECES);
    for (ids, text) in [
        (&[2, 4, 5][..], "a"),
        (&[2, 4], "a"),
        (&[2, 4, 5, 6], "a€"),
        (&[2, 11], "a\u{FFFD}"), // can never become a character
    ] {
        assert_eq!(stream(&tokenizer, ids, true).concat(), text, "{ids:?}");
    }
}

#[test]
fn bytes_are_held_by_the_pipeline_until_they_form_a_character() {
    let tokenizer = small_tokenizer("fallback_metaspace", FALLBACK_METASPACE_DECODER, &PIECES);
    let pieces = stream(&tokenizer, &[2, 4, 5, 6, 3], true);
    assert_eq!(pieces, ["a", "", "", "€", "b", ""]);
}

/// Output that continues a prompt keeps the space of its first word; standalone output loses it.
#[test]
fn the_prompt_tail_decides_about_the_leading_space() {
    for (name, decoder) in [
        ("tail_bytes", LLAMA_DECODER),
        ("tail_pipeline", METASPACE_DECODER),
    ] {
        let tokenizer = small_tokenizer(name, decoder, &PIECES);
        let first = |tail: &[u32]| Detokenizer::new(Arc::clone(&tokenizer), true, tail).push(2);
        assert_eq!(first(&[]), "a", "{name}");
        assert_eq!(first(&[3, 3, 3, 3, 3, 3, 3, 3]), " a", "{name}");
    }
}

#[test]
fn token_bytes_join_to_the_text() {
    let Some(tokenizer) = common::tokenizer() else {
        return;
    };
    let text = "naïve 🦊 漢字\n<|im_end|>";
    let ids = tokenizer.encode(text, false).unwrap();
    let bytes: Vec<u8> = ids
        .iter()
        .flat_map(|&id| tokenizer.token_bytes(id).unwrap().into_owned())
        .collect();
    assert_eq!(bytes, text.as_bytes());
}

#[test]
fn special_tokens_that_are_kept_are_written() {
    let Some(tokenizer) = common::tokenizer() else {
        return;
    };
    let ids = tokenizer.encode("<|im_start|>a<|im_end|>", false).unwrap();
    let mut detokenizer = Detokenizer::new(tokenizer.clone(), true, &[]);
    detokenizer.keep([tokenizer.token_id("<|im_end|>").unwrap()].into());
    let text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    assert_eq!(text, "a<|im_end|>");
}
