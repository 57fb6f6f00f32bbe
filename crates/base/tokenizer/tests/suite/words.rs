//! The synthetic vocabulary as a text model.

use penstock_tokenizer::{Conversation, TextModel};
use serde_json::json;

#[test]
fn generated_text_is_read_back_as_its_tokens() {
    let words = TextModel::of_words(500).unwrap().tokenizer;
    let ids: Vec<u32> = (0..500).collect();
    assert_eq!(words.encode(&words.decode(&ids, false), true).unwrap(), ids);
    assert_eq!(words.decode(&[5, 7, 499, 0], true), " t5 t7 t499");
    assert_eq!((words.vocab_size(), words.eos()), (500, Some(0)));
    assert_eq!(words.token_id("t7"), Some(7));
}

#[test]
fn other_words_are_one_token_each_and_equal_ones_equal() {
    let words = TextModel::of_words(500).unwrap().tokenizer;
    let ids = words
        .encode("the cat t500 t01 t+1 the\n cat", true)
        .unwrap();
    assert_eq!(ids.len(), 7);
    assert_eq!((ids[0], ids[1]), (ids[5], ids[6]));
    assert!(ids.iter().all(|id| (1..500).contains(id)));
}

#[test]
fn conversations_count_roles() {
    let text = TextModel::of_words(500).unwrap();
    let messages =
        json!([{"role": "user", "content": "a b"}, {"role": "assistant", "content": null}]);
    let count = |add_generation_prompt| {
        let chat = Conversation {
            add_generation_prompt,
            ..Conversation::of(&messages)
        };
        let prompt = text.render(&chat, true).unwrap();
        text.encode_rendered(&prompt).unwrap().len()
    };
    assert_eq!((count(false), count(true)), (4, 5));
}
