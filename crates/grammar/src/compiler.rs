use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use llguidance::Matcher as Inner;
use llguidance::api::TopLevelGrammar;
use penstock_wire::{Grammar, GrammarKind};

use crate::error::GrammarError;
use crate::matcher::Matcher;
use crate::vocabulary::Vocabulary;
use crate::{gbnf, lark, schema, tags};

/// Stack of a thread that compiles: llguidance recurses over chains of rules and `$ref`s, of which
/// a text of the largest size has tens of thousands. Pages that are not touched take no memory.
const STACK: usize = 512 << 20;
/// Most threads that compile, those that were given up included.
const THREADS: usize = 4;
/// Tokens that a grammar is followed for at once.
const PROBED: usize = 6;
/// Grammars that are kept.
const KEPT: usize = 16;

/// A grammar that compiles. Clones share it.
#[derive(Clone)]
pub struct Compiled {
    /// As it was compiled: each sequence gets a copy, with lexer states of its own.
    fresh: Arc<Mutex<Inner>>,
    eos: u32,
}

impl Compiled {
    /// A matcher at the start of an output. `ends` are the tokens that may end it.
    pub fn matcher(&self, ends: Vec<u32>) -> Matcher {
        let fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        Matcher::new(fresh.deep_clone(), self.eos, ends)
    }
}

/// Compiles grammars for one vocabulary, and keeps the last ones.
pub struct Compiler {
    vocabulary: Arc<Vocabulary>,
    kept: Mutex<VecDeque<(Grammar, Compiled)>>,
    threads: Arc<AtomicUsize>,
}

impl Compiler {
    pub fn new(vocabulary: Vocabulary) -> Self {
        Self {
            vocabulary: Arc::new(vocabulary),
            kept: Mutex::default(),
            threads: Arc::default(),
        }
    }

    /// Compiles `grammar` on a thread of its own within `limit`; one that takes longer is given up
    /// and ends by itself.
    ///
    /// # Errors
    /// What is wrong with the grammar; [`GrammarError::TooSlow`]; [`GrammarError::Busy`].
    pub fn compile(&self, grammar: &Grammar, limit: Duration) -> Result<Compiled, GrammarError> {
        if let Some(found) = self.find(grammar) {
            return Ok(found);
        }
        let place = Place::take(&self.threads).ok_or(GrammarError::Busy)?;
        let (vocabulary, own) = (Arc::clone(&self.vocabulary), grammar.clone());
        let (send, answer) = mpsc::channel();
        let work = move || {
            let _place = place;
            // The caller has given up where it took too long.
            let _ = send.send(compile(&vocabulary, &own));
        };
        let thread = std::thread::Builder::new().name("penstock-grammar".into());
        let started = thread.stack_size(STACK).spawn(work);
        started.map_err(|e| GrammarError::of(&e))?;
        let compiled = match answer.recv_timeout(limit) {
            Ok(compiled) => compiled?,
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(GrammarError::TooSlow(limit)),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(GrammarError::invalid("it cannot be compiled"));
            }
        };
        let mut kept = self.kept();
        kept.truncate(KEPT - 1);
        kept.push_front((grammar.clone(), compiled.clone()));
        Ok(compiled)
    }

    fn find(&self, grammar: &Grammar) -> Option<Compiled> {
        let mut kept = self.kept();
        let at = kept.iter().position(|(other, _)| other == grammar)?;
        let found = kept.remove(at)?;
        let compiled = found.1.clone();
        kept.push_front(found);
        Some(compiled)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, VecDeque<(Grammar, Compiled)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the threads.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(threads: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |n: usize| (n < THREADS).then_some(n + 1);
        let taken = threads.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.is_ok().then(|| Self(Arc::clone(threads)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn compile(vocabulary: &Vocabulary, grammar: &Grammar) -> Result<Compiled, GrammarError> {
    let parser = vocabulary.parser(lowered(vocabulary, grammar)?)?;
    let mut inner = Inner::new(Ok(parser));
    if let Some(error) = inner.get_error() {
        return Err(GrammarError::of(&error));
    }
    probe(inner.deep_clone())?;
    if let Some(warning) = inner.grammar_warnings().first() {
        return Err(GrammarError::of(warning));
    }
    Ok(Compiled {
        fresh: Arc::new(Mutex::new(inner)),
        eos: vocabulary.eos,
    })
}

/// Follows the grammar for a few tokens: finds one without any output, and most of those that are
/// too complex to be followed.
fn probe(mut inner: Inner) -> Result<(), GrammarError> {
    for step in 0..PROBED {
        let mask = inner.compute_mask_or_eos();
        let token = mask.ok().and_then(|mask| mask.first_bit_set());
        let taken = token.is_some_and(|token| inner.consume_token(token as u32).is_ok());
        match taken {
            true if inner.is_stopped() => return Ok(()),
            true => {}
            false if step == 0 => {
                return Err(GrammarError::invalid(
                    "no output matches it, or it is too complex",
                ));
            }
            false => return Err(GrammarError::invalid("it is too complex to be followed")),
        }
    }
    Ok(())
}

/// The grammar in llguidance's form.
fn lowered(vocabulary: &Vocabulary, grammar: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
    let text = grammar.text.as_str();
    Ok(match grammar.kind {
        GrammarKind::JsonSchema => TopLevelGrammar::from_json_schema(schema::read(text)?),
        GrammarKind::Regex => TopLevelGrammar::from_lark(lark::of_regex(text)?),
        GrammarKind::Choice => TopLevelGrammar::from_lark(lark::of_choice(text)?),
        GrammarKind::Syntax if gbnf::is_gbnf(text) => {
            TopLevelGrammar::from_lark(gbnf::to_lark(text)?)
        }
        GrammarKind::Syntax => TopLevelGrammar::from_lark(lark::checked(text)?),
        GrammarKind::StructuralTag => {
            TopLevelGrammar::from_lark(tags::to_lark(text, &vocabulary.special)?)
        }
    })
}
