use std::sync::Arc;

use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, TokenParser, api::TopLevelGrammar};
use penstock_tokenizer::Tokenizer;

use crate::error::GrammarError;

/// Bounds on the size of a grammar and the cost of matching: llguidance's defaults, except for
/// lexer states (about 2 kB each), and without the grammar's text in errors.
fn limits() -> ParserLimits {
    ParserLimits {
        max_lexer_states: 50_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// The bytes of a model's tokens, as a trie. Takes some tenths of a second to build.
pub struct Vocabulary {
    factory: ParserFactory,
    /// An end token after the model's tokens, required by the trie. Matchers have their sequences'
    /// real end tokens.
    pub(crate) eos: u32,
    /// Texts and ids of special tokens, longest text first.
    pub(crate) special: Vec<(String, u32)>,
}

impl Vocabulary {
    /// Builds the vocabulary of a tokenizer.
    ///
    /// # Errors
    /// [`GrammarError::NoBytes`] if text is not the concatenation of its tokens' bytes.
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

    /// Like [`Self::new`], from the bytes of each token, and the texts and ids of special tokens,
    /// which do not represent text.
    ///
    /// # Errors
    /// Never depends on the input.
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

    /// `own`: the request contains the grammar's text, so errors keep its line numbers.
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
