use std::sync::Arc;

use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser, api::TopLevelGrammar};
use penstock_tokenizer::Tokenizer;

use crate::error::GrammarError;

/// Bounds of a grammar and of what it costs to follow it: llguidance's defaults, but for states
/// (about 2 kB each) and without a grammar's text in errors.
fn limits() -> ParserLimits {
    ParserLimits {
        max_lexer_states: 50_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// The bytes of a model's tokens, as a trie: takes some tenths of a second to build.
pub struct Vocabulary {
    factory: ParserFactory,
    /// A token behind the model's, because the trie needs one: matchers know what ends their
    /// sequences.
    pub(crate) eos: u32,
    /// Texts of special tokens, longest first.
    pub(crate) special: Vec<(String, u32)>,
}

impl Vocabulary {
    /// Reads the tokens of a tokenizer.
    ///
    /// # Errors
    /// [`GrammarError::NoBytes`] where text is not the concatenation of its tokens' bytes.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        if !tokenizer.is_bytes() {
            return Err(GrammarError::NoBytes);
        }
        let size = tokenizer.vocab_size() as u32;
        let mut special = Vec::new();
        let mut words = Vec::with_capacity(size as usize);
        for id in 0..size {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            if tokenizer.is_special(id) {
                special.push((String::from_utf8_lossy(&bytes).into_owned(), id));
            }
            words.push(bytes.into_owned());
        }
        Self::of_tokens(words, special)
    }

    /// The same from the bytes of each token, and the texts and ids of special ones, which stand
    /// for no text.
    ///
    /// # Errors
    /// None that depends on the input.
    pub fn of_tokens(
        mut words: Vec<Vec<u8>>,
        mut special: Vec<(String, u32)>,
    ) -> Result<Self, GrammarError> {
        for (_, id) in &special {
            if let Some(word) = words.get_mut(*id as usize) {
                word.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
        }
        let eos = words.len() as u32;
        words.push([&[TokTrie::SPECIAL_TOKEN_MARKER][..], b"<end of output>"].concat());
        special.retain(|(text, _)| !text.is_empty());
        special.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        let info = TokRxInfo::new(words.len() as u32, eos);
        let trie = TokTrie::from(&info, &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let capabilities = InferenceCapabilities::default();
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, capabilities, &slices);
        let mut factory = factory.map_err(|e| GrammarError::of(&e))?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(Self {
            factory,
            eos,
            special,
        })
    }

    /// `own`: the request wrote the grammar's text, so errors keep its lines.
    pub(crate) fn parser(
        &self,
        grammar: TopLevelGrammar,
        own: bool,
    ) -> Result<TokenParser, GrammarError> {
        let parser = self.factory.create_parser(grammar);
        parser.map_err(|error| match own {
            true => GrammarError::of(&format_args!("{error:#}")),
            false => GrammarError::of_inner(&format_args!("{error:#}")),
        })
    }
}
