//! `tiktoken.model` of Kimi-K2, which has no tokenizer.json: byte strings in order of rank.
//!
//! The rule that splits text into words is Python code beside the file, and Penstock does not run
//! it. Only Kimi's rule is built in; other tokenizer classes are refused.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::{Map, Value};
use tokenizers::models::bpe::{Merges, Vocab};
use tokenizers::{AddedToken, Tokenizer as HfTokenizer};

use crate::TextError;
use crate::bytes::byte_symbols;
use crate::gguf::{PreTokenizer, byte_level};

pub(crate) const FILE: &str = "tiktoken.model";
const CONFIG: &str = "tokenizer_config.json";
const CLASS: &str = "TikTokenTokenizer";
const CODE: &str = "tokenization_kimi";
/// Maximum number of tokens in a file, well above the vocabulary of Kimi.
const MOST_TOKENS: usize = 1 << 22;
const LONGEST_TOKEN: usize = 512;
/// Number of ids after the ranks that are reserved for special tokens. Their texts are in
/// tokenizer_config.json, or are derived from their number.
const RESERVED: usize = 256;

/// Builds the tokenizer of the model in `directory`, with its special tokens, from the contents of
/// tiktoken.model (`ranks`) and tokenizer_config.json (`config`).
///
/// # Errors
/// `tokenizer_class` is not Kimi's, or `ranks` or the special tokens have an unexpected format.
pub(crate) fn pipeline(
    directory: &Path,
    ranks: &[u8],
    config: &Map<String, Value>,
) -> Result<HfTokenizer, TextError> {
    let bad_config = |reason: String| TextError::bad_file(&directory.join(CONFIG), reason);
    if !is_kimi(config) {
        let class = config.get("tokenizer_class").unwrap_or(&Value::Null);
        return Err(bad_config(format!(
            "tokenizer_class = {class}: beside a {FILE} without tokenizer.json only {CLASS} of \
             {CODE} is known; convert the tokenizer with transformers' save_pretrained"
        )));
    }
    let tokens = read(ranks).map_err(|e| TextError::bad_file(&directory.join(FILE), e))?;
    let (vocabulary, merges) = vocabulary(&tokens);
    let special = special_tokens(config, tokens.len(), &vocabulary).map_err(bad_config)?;
    let pre = PreTokenizer::named("kimi-k2")?;
    let mut inner = byte_level(pre, vocabulary, merges).map_err(TextError::build)?;
    inner.add_tokens(&special);
    Ok(inner)
}

fn is_kimi(config: &Map<String, Value>) -> bool {
    let class = config.get("tokenizer_class").and_then(Value::as_str);
    let code = config.get("auto_map").map(Value::to_string);
    class == Some(CLASS) && code.is_none_or(|code| code.contains(CODE))
}

/// Byte strings in order of rank, from lines of base64 and rank.
fn read(file: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let text = std::str::from_utf8(file).map_err(|e| e.to_string())?;
    let lines = || {
        text.lines()
            .enumerate()
            .filter(|(_, line)| !line.is_empty())
    };
    let count = lines().count();
    if count > MOST_TOKENS {
        return Err(format!("{count} tokens; at most {MOST_TOKENS} are taken"));
    }
    let mut tokens = vec![Vec::new(); count];
    for (number, line) in lines() {
        let fault = |what: &str| format!("line {}: {what}", number + 1);
        let (code, rank) = line.split_once(' ').ok_or_else(|| fault("no rank"))?;
        let token = base64(code).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| fault("not base64 of a token"))?;
        if token.len() > LONGEST_TOKEN {
            return Err(fault(&format!("a token of over {LONGEST_TOKEN} bytes")));
        }
        let rank = rank
            .trim()
            .parse()
            .ok()
            .filter(|&rank: &usize| rank < count);
        let rank = rank.ok_or_else(|| fault(&format!("not a rank from 0 to {}", count - 1)))?;
        if !tokens[rank].is_empty() {
            return Err(fault(&format!("rank {rank} appears twice")));
        }
        tokens[rank] = token;
    }
    let distinct: HashSet<&Vec<u8>> = tokens.iter().collect();
    if distinct.len() < count {
        return Err("two ranks have the same token".to_owned());
    }
    match (0..=255).find(|&byte| !distinct.contains(&vec![byte])) {
        Some(byte) => Err(format!("no token for byte {byte}")),
        None => Ok(tokens),
    }
}

/// Decodes standard base64 with padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let (mut bytes, mut held, mut bits) = (Vec::with_capacity(text.len()), 0u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    Some(bytes)
}

/// The vocabulary in byte-level BPE symbols, and its merges. In tiktoken, two adjacent tokens merge
/// if their concatenated bytes are a token, lowest rank first; so every split of a token is a merge
/// with the token's rank.
fn vocabulary(tokens: &[Vec<u8>]) -> (Vocab, Merges) {
    let symbols = byte_symbols();
    let letters = |token: &[u8]| token.iter().map(|&b| symbols[usize::from(b)]).collect();
    let texts: Vec<String> = tokens.iter().map(|token| letters(token)).collect();
    let ranks = tokens
        .iter()
        .zip(0..)
        .map(|(token, rank)| (&token[..], rank));
    let ranks: HashMap<&[u8], u32> = ranks.collect();
    let mut merges = Vec::new();
    for token in tokens {
        let cut = |at| {
            let (left, right) = token.split_at(at);
            Some((*ranks.get(left)?, *ranks.get(right)?))
        };
        let mut cuts: Vec<(u32, u32)> = (1..token.len()).filter_map(cut).collect();
        cuts.sort_unstable();
        let text = |rank: u32| texts[rank as usize].clone();
        merges.extend(
            cuts.into_iter()
                .map(|(left, right)| (text(left), text(right))),
        );
    }
    (texts.into_iter().zip(0..).collect(), merges)
}

/// The special tokens, whose ids follow the ranks, in id order.
fn special_tokens(
    config: &Map<String, Value>,
    first: usize,
    vocabulary: &Vocab,
) -> Result<Vec<AddedToken>, String> {
    let mut named: HashMap<usize, (&str, bool)> = HashMap::new();
    let stated = config
        .get("added_tokens_decoder")
        .and_then(Value::as_object);
    for (id, token) in stated.into_iter().flatten() {
        let place = id
            .parse()
            .ok()
            .filter(|id| (first..first + RESERVED).contains(id));
        let end = first + RESERVED - 1;
        let place = place
            .ok_or_else(|| format!("added_tokens_decoder: id {id} is not from {first} to {end}"))?;
        let content = token.get("content").and_then(Value::as_str);
        let content =
            content.ok_or_else(|| format!("added_tokens_decoder: {id} has no content"))?;
        let special = token.get("special").and_then(Value::as_bool);
        named.insert(place, (content, special.unwrap_or(true)));
    }
    let mut seen = HashSet::new();
    let token = |id: usize| {
        let reserved = || (format!("<|reserved_token_{id}|>"), true);
        let stated = named
            .get(&id)
            .map(|&(text, special)| (text.to_owned(), special));
        let (text, special) = stated.unwrap_or_else(reserved);
        if vocabulary.contains_key(&text) || !seen.insert(text.clone()) {
            return Err(format!("added_tokens_decoder: {text:?} is two tokens"));
        }
        Ok(AddedToken::from(text, special).normalized(false))
    };
    (first..first + RESERVED).map(token).collect()
}
