//! Finds end tokens by their text, because many GGUF files declare only one of them, or none, in
//! their keys.

use penstock_checkpoint::Metadata;

use super::fields::Fields;

/// Names of tokens that end generation in any model family.
const NAMES: [&str; 16] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|im_end|>",
    "<|end|>",
    HARMONY[0],
    HARMONY[1],
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
];
/// End tokens of gpt-oss, in which `<|end|>` ends only one message of an answer.
const HARMONY: [&str; 2] = ["<|return|>", "<|call|>"];

/// Ids of the tokens with one of `NAMES`; empty without a vocabulary.
pub(crate) fn end_tokens(metadata: &Metadata) -> Vec<u32> {
    let Ok(vocabulary) = Fields(metadata).vocabulary() else {
        return Vec::new();
    };
    let named = vocabulary.iter().filter(|(_, _, kind)| kind.is_added());
    let found: Vec<(u32, &str)> = named
        .filter(|(_, text, _)| NAMES.contains(text))
        .map(|(id, text, _)| (id, text))
        .collect();
    let has = |name: &str| found.iter().any(|(_, text)| *text == name);
    let harmony = HARMONY.into_iter().all(has);
    let ends = found
        .iter()
        .filter(|(_, text)| !harmony || *text != "<|end|>");
    ends.map(|(id, _)| *id).collect()
}
