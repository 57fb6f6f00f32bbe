//! Grammars of requests: compiled here first, so that one that cannot be followed is refused before
//! the engine sees it.

use std::sync::OnceLock;
use std::time::Duration;

use penstock_grammar::{Compiler, GrammarError, Vocabulary};
use penstock_openai::{ApiError, OutputGrammar};
use penstock_text::Tokenizer;

/// Time to compile a grammar: ordinary ones take milliseconds.
const COMPILE_LIMIT: Duration = Duration::from_secs(3);
const RETRY_S: u32 = 1;

/// The compiler of the model's vocabulary, made with the first grammar.
#[derive(Default)]
pub(crate) struct Grammars(OnceLock<Result<Compiler, GrammarError>>);

impl Grammars {
    /// Compiles the grammar of a request; waits for it.
    ///
    /// # Errors
    /// 400 with the field and what is wrong; 503 while too many grammars are compiled.
    pub(crate) fn check(
        &self,
        tokenizer: &Tokenizer,
        wanted: &OutputGrammar,
    ) -> Result<(), ApiError> {
        let make = || Vocabulary::new(tokenizer).map(Compiler::new);
        let compiler = self.0.get_or_init(make).as_ref();
        let compile = |c: &Compiler| c.compile(&wanted.grammar, COMPILE_LIMIT).map(drop);
        let field = wanted.field;
        match compiler.map_err(Clone::clone).and_then(compile) {
            Ok(()) => Ok(()),
            Err(GrammarError::Busy) => Err(ApiError::unavailable(
                "Too many grammars are being compiled.",
                RETRY_S,
            )),
            Err(error) => Err(ApiError::invalid(field, format!("{field}: {error}."))),
        }
    }
}
