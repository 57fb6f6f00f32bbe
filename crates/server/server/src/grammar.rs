//! Grammars of requests. The API server compiles each grammar first, so that an unusable one is
//! rejected before the engine receives it.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use penstock_api_types::ApiError;
use penstock_structured_output::{Compiled, Compiler, GrammarError, Vocabulary};
use penstock_tokenizer::Tokenizer;
use penstock_wire::Grammar;
use tokio::sync::Mutex as TaskMutex;

use crate::job_process::JobProcess;

/// Time-out of a compilation; ordinary grammars take milliseconds.
const COMPILE_LIMIT: Duration = Duration::from_secs(3);
const RETRY_S: u32 = 1;
/// Maximum number of verdicts in the cache.
const KEPT: usize = 1024;
/// Number of locks. A grammar's hash selects its lock, so that requests with equal grammars wait
/// for the same trial.
const GATES: usize = 32;

pub(crate) type Verdict = Result<(), GrammarError>;

/// The grammar compiler for the model's vocabulary, built lazily with the first grammar.
#[derive(Default)]
pub(crate) struct Grammars {
    compiler: OnceLock<Result<Compiler, GrammarError>>,
    /// `None`: trials are skipped.
    pub(crate) process: Option<JobProcess>,
    /// Coalesces concurrent trials of the same grammar into one.
    gates: [Arc<TaskMutex<()>>; GATES],
    pub(crate) verdicts: Verdicts,
}

impl Grammars {
    /// `command` starts the process for trials.
    pub(crate) fn new(command: &[String]) -> Self {
        Self {
            process: JobProcess::new(command, "grammar"),
            ..Self::default()
        }
    }

    /// Compiles a grammar that is small or has passed its trial. Blocks.
    /// # Errors
    /// The compiler's error; [`GrammarError::Busy`] while too many grammars are compiled.
    pub(crate) fn compile(
        &self,
        tokenizer: &Tokenizer,
        grammar: &Grammar,
    ) -> Result<Compiled, GrammarError> {
        self.compiler(tokenizer)?.compile(grammar, COMPILE_LIMIT)
    }

    /// Result for each schema: the keyword that the compiler does not support, or
    /// [`GrammarError::Busy`]. The flag of a schema marks it as large; `trial` is the result for
    /// the large ones.
    pub(crate) fn check_schemas<'a>(
        &self,
        tokenizer: &Tokenizer,
        schemas: impl ExactSizeIterator<Item = (&'a Grammar, bool)>,
        trial: &Verdict,
    ) -> Vec<Verdict> {
        let compiler = match self.compiler(tokenizer) {
            Ok(compiler) => compiler,
            Err(error) => return vec![Err(error); schemas.len()],
        };
        let check = |(schema, large): (&Grammar, bool)| {
            if large {
                trial.clone()?;
            }
            let key = self.verdicts.key(&("schema", schema));
            self.verdicts.known(key).unwrap_or_else(|| {
                let verdict = compiler.check_schema(&schema.text, COMPILE_LIMIT);
                self.verdicts.keep(key, &verdict);
                verdict
            })
        };
        schemas.map(check).collect()
    }

    /// The lock for a grammar's trial, by its hash.
    pub(crate) fn gate(&self, key: u64) -> Arc<TaskMutex<()>> {
        Arc::clone(&self.gates[key as usize % GATES])
    }

    pub(crate) fn compiler(&self, tokenizer: &Tokenizer) -> Result<&Compiler, GrammarError> {
        let make = || Vocabulary::new(tokenizer).map(Compiler::new);
        self.compiler
            .get_or_init(make)
            .as_ref()
            .map_err(Clone::clone)
    }
}

/// Cache of the verdicts on the latest grammars, by hash.
#[derive(Default)]
pub(crate) struct Verdicts {
    numbers: RandomState,
    kept: Mutex<VecDeque<(u64, Verdict)>>,
}

impl Verdicts {
    pub(crate) fn key(&self, of: &impl std::hash::Hash) -> u64 {
        self.numbers.hash_one(of)
    }

    pub(crate) fn known(&self, key: u64) -> Option<Verdict> {
        let kept = lock(&self.kept);
        let known = kept.iter().find(|(other, _)| *other == key);
        known.map(|(_, verdict)| verdict.clone())
    }

    pub(crate) fn keep(&self, key: u64, verdict: &Verdict) {
        // Not cached: these two errors depend on the current load.
        if !matches!(verdict, Err(GrammarError::Busy | GrammarError::TooSlow(_))) {
            let mut kept = lock(&self.kept);
            kept.truncate(KEPT - 1);
            kept.push_front((key, verdict.clone()));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 400 about `what` in a field; 503 while too many grammars are being compiled.
pub(crate) fn api_error(field: &'static str, what: &str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Busy => {
            ApiError::unavailable("Too many grammars are being compiled.", RETRY_S)
        }
        error => ApiError::invalid(field, format!("{what}: {error}.")),
    }
}
