use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use llguidance::Matcher as Inner;
use llguidance::api::TopLevelGrammar;
use penstock_wire::{Grammar, GrammarKind};

use crate::error::GrammarError;
use crate::lexer::Lexers;
use crate::matcher::Matcher;
use crate::vocabulary::Vocabulary;
use crate::{gbnf, lark, schema, tags};

/// Stack size of compile threads. llguidance recurses over chains of rules and `$ref`s, of which a
/// grammar of maximum size has tens of thousands. Untouched pages take no memory.
const STACK: usize = 512 << 20;
/// Maximum number of compile threads, including those whose caller has timed out.
const THREADS: usize = 4;
/// Number of tokens after which the probe of a grammar stops.
const PROBED: usize = 6;
const PANIC: &str = "it cannot be compiled";
/// Number of grammars that the cache keeps.
const KEPT: usize = 16;

/// A compiled grammar. Clones share it.
#[derive(Clone)]
pub struct Compiled {
    lexers: Arc<Lexers>,
    eos: u32,
}

impl Compiled {
    /// A matcher at the start of an output. `ends` are the tokens that may end the output.
    pub fn matcher(&self, ends: Vec<u32>) -> Matcher {
        Matcher::new(Arc::clone(&self.lexers), self.eos, ends)
    }

    /// Whether the grammar allows an output that starts with `tokens`; `ends` are the tokens that
    /// may end the output.
    pub fn allows(&self, tokens: &[u32], ends: Vec<u32>) -> bool {
        let mut matcher = self.matcher(ends);
        let mut tokens = tokens.iter();
        tokens.all(|&token| matcher.accept(token) == Ok(true))
    }
}

type Outcome = Result<Compiled, GrammarError>;
type Waiter = Box<dyn FnOnce(Outcome) + Send>;

/// A cache entry: a compiled grammar, or one in progress.
enum Entry {
    Done(Outcome),
    Running(Vec<Waiter>),
}

type Cache = VecDeque<(Grammar, Arc<Mutex<Entry>>)>;

/// Compiles grammars for one vocabulary and caches the most recent ones. Concurrent requests for a
/// grammar share one compilation.
pub struct Compiler {
    vocabulary: Arc<Vocabulary>,
    kept: Arc<Mutex<Cache>>,
    threads: Arc<AtomicUsize>,
    /// Total size of all lexers in bytes.
    bytes: Arc<AtomicUsize>,
}

impl Compiler {
    pub fn new(vocabulary: Vocabulary) -> Self {
        Self {
            vocabulary: Arc::new(vocabulary),
            kept: Arc::default(),
            threads: Arc::default(),
            bytes: Arc::default(),
        }
    }

    /// Approximate total size of the matchers' lexers in bytes, as of their last masks.
    pub fn lexer_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Checks that a grammar supports a schema, without building a matcher.
    ///
    /// # Errors
    /// The schema is invalid or unsupported; [`GrammarError::TooSlow`]; [`GrammarError::Busy`].
    pub fn check_schema(&self, schema: &str, limit: Duration) -> Result<(), GrammarError> {
        let place = CompilePermit::take(&self.threads).ok_or(GrammarError::Busy)?;
        let (send, answer) = mpsc::channel();
        let (vocabulary, schema) = (Arc::clone(&self.vocabulary), schema.to_owned());
        let work = move || {
            let read = || {
                let grammar = TopLevelGrammar::from_json_schema(schema::read(&schema)?);
                vocabulary.parser(grammar, false).map(drop)
            };
            let outcome = catch_unwind(AssertUnwindSafe(read));
            drop(place);
            // Fails if the caller has timed out.
            let _ = send.send(outcome.unwrap_or_else(|_| Err(GrammarError::invalid(PANIC))));
        };
        spawned(work)?;
        let late = |_| GrammarError::TooSlow(limit);
        answer.recv_timeout(limit).map_err(late)?
    }

    /// Compiles `grammar` on a separate thread and waits up to `limit`. A slower compilation
    /// continues and is cached; a grammar that may never finish requires a trial first
    /// ([`crate::trial_job`]).
    ///
    /// # Errors
    /// The grammar is invalid or unsupported; [`GrammarError::TooSlow`]; [`GrammarError::Busy`].
    pub fn compile(&self, grammar: &Grammar, limit: Duration) -> Result<Compiled, GrammarError> {
        let (send, answer) = mpsc::channel();
        self.start(grammar, move |outcome| {
            // Fails if the caller has timed out.
            let _ = send.send(outcome);
        });
        let late = |_| GrammarError::TooSlow(limit);
        answer.recv_timeout(limit).map_err(late)?
    }

    /// Compiles `grammar` on a separate thread and calls `then` there with the outcome. If the
    /// outcome is cached, or no thread is free, `then` runs on the calling thread.
    pub fn start(&self, grammar: &Grammar, then: impl FnOnce(Outcome) + Send + 'static) {
        let mut kept = lock(&self.kept);
        if let Some(entry) = recent(&mut kept, grammar) {
            drop(kept);
            let outcome = match &mut *lock(&entry) {
                Entry::Running(waiters) => return waiters.push(Box::new(then)),
                Entry::Done(outcome) => outcome.clone(),
            };
            return then(outcome);
        }
        let Some(place) = CompilePermit::take(&self.threads) else {
            return then(Err(GrammarError::Busy));
        };
        let entry = Arc::new(Mutex::new(Entry::Running(vec![Box::new(then)])));
        kept.truncate(KEPT - 1);
        kept.push_front((grammar.clone(), Arc::clone(&entry)));
        drop(kept);
        self.spawn(grammar.clone(), entry, place);
    }

    fn spawn(&self, grammar: Grammar, entry: Arc<Mutex<Entry>>, place: CompilePermit) {
        let (vocabulary, bytes) = (Arc::clone(&self.vocabulary), Arc::clone(&self.bytes));
        let (kept, answered) = (Arc::clone(&self.kept), Arc::clone(&entry));
        let work = move || {
            let work = || compile(&vocabulary, &grammar, &bytes);
            let outcome = catch_unwind(AssertUnwindSafe(work));
            let outcome = outcome.unwrap_or_else(|_| Err(GrammarError::invalid(PANIC)));
            // Free the place before the outcome is delivered: its receiver may start another
            // compilation at once.
            drop(place);
            finish(&kept, &entry, outcome);
        };
        if let Err(error) = spawned(work) {
            finish(&self.kept, &answered, Err(error));
        }
    }
}

/// Looks up a grammar and makes its entry the most recent one.
fn recent(kept: &mut Cache, grammar: &Grammar) -> Option<Arc<Mutex<Entry>>> {
    let at = kept.iter().position(|(other, _)| other == grammar)?;
    let found = kept.remove(at)?;
    let entry = Arc::clone(&found.1);
    kept.push_front(found);
    Some(entry)
}

/// Starts a thread with the stack size for compilation.
fn spawned(work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, GrammarError> {
    let thread = std::thread::Builder::new().name("penstock-schema".into());
    let started = thread.stack_size(STACK).spawn(work);
    // A transient failure, not a verdict on the grammar.
    started.map_err(|_| GrammarError::Busy)
}

/// Compiles a grammar on a thread with a large enough stack and discards the result.
///
/// # Errors
/// [`GrammarError::Busy`] if no thread could be started.
pub(crate) fn tried(vocabulary: &Arc<Vocabulary>, grammar: Grammar) -> Result<(), GrammarError> {
    let vocabulary = Arc::clone(vocabulary);
    let work = move || drop(compile(&vocabulary, &grammar, &Arc::default()));
    // A panic will recur when the grammar is compiled for use.
    let _ = spawned(work)?.join();
    Ok(())
}

/// Stores the outcome and calls the waiters. A failure is removed from the cache.
fn finish(kept: &Mutex<Cache>, entry: &Arc<Mutex<Entry>>, outcome: Outcome) {
    if outcome.is_err() {
        lock(kept).retain(|(_, other)| !Arc::ptr_eq(other, entry));
    }
    let before = std::mem::replace(&mut *lock(entry), Entry::Done(outcome.clone()));
    if let Entry::Running(waiters) = before {
        waiters.into_iter().for_each(|then| then(outcome.clone()));
    }
}

/// A permit to run a compile thread.
struct CompilePermit(Arc<AtomicUsize>);

impl CompilePermit {
    fn take(threads: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |n: usize| (n < THREADS).then_some(n + 1);
        let taken = threads.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.is_ok().then(|| Self(Arc::clone(threads)))
    }
}

impl Drop for CompilePermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn compile(vocabulary: &Vocabulary, grammar: &Grammar, bytes: &Arc<AtomicUsize>) -> Outcome {
    let own = grammar.kind == GrammarKind::Syntax && !gbnf::is_gbnf(&grammar.text);
    let mut parser = vocabulary.parser(lowered(vocabulary, grammar)?, own)?;
    let inner = Inner::new(Ok(parser.deep_clone()));
    if let Some(error) = inner.get_error() {
        return Err(GrammarError::of(&error));
    }
    probe(inner)?;
    if let Some(warning) = parser.grammar_warnings().first() {
        return Err(GrammarError::of(warning));
    }
    Ok(Compiled {
        lexers: Arc::new(Lexers::new(parser, bytes)),
        eos: vocabulary.eos,
    })
}

/// Follows the grammar for a few tokens. Detects grammars without any output and most grammars that
/// are too complex to follow.
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

/// Translates a grammar to llguidance's format.
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
