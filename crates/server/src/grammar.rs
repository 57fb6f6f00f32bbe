//! Grammars of requests: compiled here first, so that one that cannot be followed is refused before
//! the engine sees it. One that may not end is compiled by a process that can be ended before.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use penstock_grammar::{Compiled, Compiler, GrammarError, Vocabulary, is_small, trial_job};
use penstock_openai::{ApiError, OutputGrammar};
use penstock_text::Tokenizer;
use penstock_wire::{Grammar, GrammarKind};

use crate::job_process::JobProcess;

/// Time to compile a grammar: ordinary ones take milliseconds.
const COMPILE_LIMIT: Duration = Duration::from_secs(3);
const RETRY_S: u32 = 1;
/// Trials at once, and the longest wait for one.
const TRIALS: usize = 2;
const TURN_LIMIT: Duration = Duration::from_secs(10);
/// Verdicts that are kept.
const KEPT: usize = 1024;

type Verdict = Result<(), GrammarError>;

/// The compiler of the model's vocabulary, made with the first grammar.
#[derive(Default)]
pub(crate) struct Grammars {
    compiler: OnceLock<Result<Compiler, GrammarError>>,
    /// `None`: trials are left out.
    process: Option<JobProcess>,
    running: Mutex<usize>,
    ended: Condvar,
    verdicts: Verdicts,
}

impl Grammars {
    /// `command` runs jobs of requests.
    pub(crate) fn new(command: &[String]) -> Self {
        Self {
            process: JobProcess::new(command, "grammar"),
            ..Self::default()
        }
    }

    /// Compiles the grammar of a request; waits for it.
    ///
    /// # Errors
    /// 400 with the field and what is wrong; 503 while too many grammars are compiled.
    pub(crate) fn check(
        &self,
        tokenizer: &Tokenizer,
        wanted: &OutputGrammar,
    ) -> Result<Compiled, ApiError> {
        let compiled = self.compiler(tokenizer).and_then(|compiler| {
            if !is_small(&wanted.grammar) {
                self.try_out(compiler, vec![wanted.grammar.clone()])?;
            }
            compiler.compile(&wanted.grammar, COMPILE_LIMIT)
        });
        let field = wanted.field;
        compiled.map_err(|error| api_error(field, field, &error))
    }

    /// Whether a grammar can hold an output to each of these schemas: what one has that none can
    /// honour, or [`GrammarError::Busy`].
    pub(crate) fn check_schemas(
        &self,
        tokenizer: &Tokenizer,
        schemas: Vec<String>,
    ) -> Vec<Verdict> {
        let compiler = match self.compiler(tokenizer) {
            Ok(compiler) => compiler,
            Err(error) => return vec![Err(error); schemas.len()],
        };
        let schema = |text| Grammar::new(GrammarKind::JsonSchema, text);
        let grammars: Vec<Grammar> = schemas.into_iter().map(schema).collect();
        // All in one process: those of the large ones that it does not end are all too large.
        let large = grammars
            .iter()
            .filter(|grammar| !is_small(grammar))
            .cloned();
        let tried = self.try_out(compiler, large.collect());
        let check = |grammar: Grammar| {
            if !is_small(&grammar) {
                tried.clone()?;
            }
            let key = self.verdicts.key(&("schema", &grammar));
            let check = || compiler.check_schema(&grammar.text, COMPILE_LIMIT);
            self.verdicts.of(key, check)
        };
        grammars.into_iter().map(check).collect()
    }

    fn compiler(&self, tokenizer: &Tokenizer) -> Result<&Compiler, GrammarError> {
        let make = || Vocabulary::new(tokenizer).map(Compiler::new);
        self.compiler
            .get_or_init(make)
            .as_ref()
            .map_err(Clone::clone)
    }

    /// Compiles large grammars elsewhere, unless that has been done.
    fn try_out(&self, compiler: &Compiler, grammars: Vec<Grammar>) -> Verdict {
        let Some(process) = self.process.as_ref().filter(|_| !grammars.is_empty()) else {
            return Ok(());
        };
        let key = self.verdicts.key(&grammars);
        self.verdicts.of(key, || {
            let _turn = self.turn()?;
            let job = trial_job(compiler, &grammars)?;
            process.run(&job).map(drop).ok_or(GrammarError::TooLarge)
        })
    }

    fn turn(&self) -> Result<Turn<'_>, GrammarError> {
        let full = |running: &mut usize| *running >= TRIALS;
        let waited = self
            .ended
            .wait_timeout_while(lock(&self.running), TURN_LIMIT, full);
        let (mut running, late) = waited.unwrap_or_else(PoisonError::into_inner);
        if late.timed_out() {
            return Err(GrammarError::Busy);
        }
        *running += 1;
        Ok(Turn(self))
    }
}

/// One of the trials that run.
struct Turn<'a>(&'a Grammars);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.running) -= 1;
        self.0.ended.notify_one();
    }
}

/// What was found of the last grammars, by a number of each.
#[derive(Default)]
struct Verdicts {
    numbers: RandomState,
    kept: Mutex<VecDeque<(u64, Verdict)>>,
}

impl Verdicts {
    fn key(&self, of: &impl std::hash::Hash) -> u64 {
        self.numbers.hash_one(of)
    }

    fn of(&self, key: u64, find: impl FnOnce() -> Verdict) -> Verdict {
        let known = lock(&self.kept).iter().find(|(k, _)| *k == key).cloned();
        if let Some((_, verdict)) = known {
            return verdict;
        }
        let verdict = find();
        // These two are of the moment.
        if !matches!(verdict, Err(GrammarError::Busy | GrammarError::TooSlow(_))) {
            let mut kept = lock(&self.kept);
            kept.truncate(KEPT - 1);
            kept.push_front((key, verdict.clone()));
        }
        verdict
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 400 about `what` of a field; 503 while too many grammars are compiled.
pub(crate) fn api_error(field: &'static str, what: &str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Busy => {
            ApiError::unavailable("Too many grammars are being compiled.", RETRY_S)
        }
        error => ApiError::invalid(field, format!("{what}: {error}.")),
    }
}
