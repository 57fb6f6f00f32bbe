//! Pre-tokenizers, which split a text into words before BPE, by their name in `tokenizer.ggml.pre`.
//!
//! The list contains only pre-tokenizers whose definition is certain from the models' own
//! tokenizer.json. The patterns are copied from those files.

use penstock_checkpoint::one_line;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::TextError;

#[derive(Debug)]
pub(crate) struct PreTokenizer {
    names: &'static [&'static str],
    split: SplitRule,
    /// Normalise text to Unicode NFC first.
    nfc: bool,
    /// A word that is a token is used directly, without merges.
    pub(super) ignore_merges: bool,
    /// BOS rule for files that do not declare one.
    pub(super) add_bos: bool,
}

#[derive(Debug)]
enum SplitRule {
    Gpt2,
    DigitsThenGpt2,
    Pattern(&'static str),
    /// Each pattern splits the pieces that remain from the previous ones.
    Patterns(&'static [&'static str]),
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const DEEPSEEK: [&str; 6] = [
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    r"[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
];
const DEEPSEEK3: [&str; 3] = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TABLE: [PreTokenizer; 10] = [
    PreTokenizer {
        names: &["gpt-2", "gpt2"],
        split: SplitRule::Gpt2,
        nfc: false,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["smollm"],
        split: SplitRule::DigitsThenGpt2,
        nfc: false,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["llama-bpe", "llama3", "llama-v3"],
        split: SplitRule::Pattern(LLAMA3),
        nfc: false,
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer {
        // Phi-4 and GLM-4.
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        split: SplitRule::Pattern(LLAMA3),
        nfc: false,
        ignore_merges: true,
        add_bos: false,
    },
    PreTokenizer {
        // gpt-oss, Phi-4-mini and Llama 4, whose files declare the BOS rule.
        names: &["gpt-4o", "llama4"],
        split: SplitRule::Pattern(O200K),
        nfc: false,
        ignore_merges: true,
        add_bos: false,
    },
    PreTokenizer {
        // Also R1 distills with Qwen's vocabulary.
        names: &["qwen2", "deepseek-r1-qwen"],
        split: SplitRule::Pattern(QWEN2),
        nfc: true,
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        // DeepSeek-V2.
        names: &["deepseek-llm"],
        split: SplitRule::Patterns(&DEEPSEEK),
        nfc: false,
        ignore_merges: false,
        add_bos: true,
    },
    PreTokenizer {
        // DeepSeek-V3 and R1.
        names: &["deepseek-v3"],
        split: SplitRule::Patterns(&DEEPSEEK3),
        nfc: false,
        ignore_merges: false,
        add_bos: true,
    },
    PreTokenizer {
        names: &["kimi-k2"],
        split: SplitRule::Pattern(KIMI),
        nfc: false,
        ignore_merges: true,
        add_bos: false,
    },
    PreTokenizer {
        names: &["tekken"],
        split: SplitRule::Pattern(TEKKEN),
        nfc: false,
        ignore_merges: true,
        add_bos: true,
    },
];

impl PreTokenizer {
    pub(crate) fn named(name: &str) -> Result<&'static Self, TextError> {
        const ENTRIES: &[PreTokenizer] = &TABLE;
        ENTRIES
            .iter()
            .find(|entry| entry.names.contains(&name))
            .ok_or_else(|| {
                let known: Vec<&str> = ENTRIES
                    .iter()
                    .flat_map(|entry| entry.names)
                    .copied()
                    .collect();
                TextError::UnknownPreTokenizer {
                    name: one_line(name),
                    known: known.join(", "),
                }
            })
    }

    pub(super) fn normalizer(&self) -> Option<NormalizerWrapper> {
        self.nfc.then(|| NFC.into())
    }

    pub(super) fn build(&self) -> Result<PreTokenizerWrapper, TextError> {
        let byte_level =
            |use_regex| PreTokenizerWrapper::from(ByteLevel::new(false, true, use_regex));
        let patterns = |each: &[&str]| {
            let mut steps = Vec::new();
            for pattern in each {
                let pattern = SplitPattern::Regex((*pattern).to_owned());
                let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
                steps.push(split.map_err(TextError::build)?.into());
            }
            steps.push(byte_level(false));
            Ok::<PreTokenizerWrapper, TextError>(Sequence::new(steps).into())
        };
        Ok(match self.split {
            SplitRule::Gpt2 => byte_level(true),
            SplitRule::DigitsThenGpt2 => {
                Sequence::new(vec![Digits::new(true).into(), byte_level(true)]).into()
            }
            SplitRule::Pattern(pattern) => patterns(&[pattern])?,
            SplitRule::Patterns(each) => patterns(each)?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    fn words(name: &str, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        PreTokenizer::named(name)
            .unwrap()
            .build()
            .unwrap()
            .pre_tokenize(&mut pieces)
            .unwrap();
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits
            .into_iter()
            .map(|(_, (start, end), _)| text[start..end].to_owned())
            .collect()
    }

    #[test]
    fn every_pattern_compiles_and_loses_no_text() {
        for entry in &TABLE {
            let text = "Hello, WORLD's  12345 \n\n\tx=１２ naïve 漢字🦊 e\u{301}";
            assert_eq!(
                words(entry.names[0], text).concat(),
                text,
                "{}",
                entry.names[0]
            );
        }
    }

    #[test]
    fn the_patterns_differ_where_the_models_do() {
        assert_eq!(words("gpt2", "a 1234"), ["a", " 1234"]);
        assert_eq!(words("smollm", "a 1234"), ["a", " ", "1", "2", "3", "4"]);
        assert_eq!(words("llama-bpe", "a 1234"), ["a", " ", "123", "4"]);
        assert_eq!(words("qwen2", "a 1234"), ["a", " ", "1", "2", "3", "4"]);
        assert_eq!(
            words("deepseek-r1-qwen", "DON'T 12"),
            ["DON", "'T", " ", "1", "2"]
        );
        assert_eq!(
            words("tekken", "fooBar DON'T"),
            ["foo", "Bar", " DON", "'T"]
        );
        assert_eq!(words("gpt-4o", "fooBar DON'T"), ["foo", "Bar", " DON'T"]);
        assert_eq!(words("gpt-4o", "1234 a//\n"), ["123", "4", " a", "//\n"]);
        assert_eq!(words("dbrx", "a 1234"), ["a", " ", "123", "4"]);
        assert_eq!(words("llama-bpe", "DON'T"), ["DON", "'T"]);
        assert_eq!(words("gpt2", "DON'T"), ["DON", "'", "T"]);
        assert_eq!(
            words("deepseek-llm", "a 12345漢字 b's\n "),
            ["a", " ", "12345", "漢字", " b", "'", "s", "\n", " "]
        );
        assert_eq!(
            words("deepseek-v3", "a 12345漢字かな b's\n\n x"),
            ["a", " ", "123", "45", "漢字かな", " b", "'s", "\n\n", " x"]
        );
        assert_eq!(
            words("kimi-k2", "fooBar漢字x DON'T 1234//\n"),
            ["foo", "Bar", "漢字", "x", " DON'T", " ", "123", "4", "//\n"]
        );
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let message = PreTokenizer::named("default").unwrap_err().to_string();
        assert!(
            message.contains("\"default\"") && message.contains("smollm, llama-bpe"),
            "{message}"
        );
    }
}
