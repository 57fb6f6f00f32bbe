//! Grammars of requests: compiled here first, so that one that cannot be followed is refused before
//! the engine sees it. One that may not end is compiled by a process that can be ended before.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use penstock_grammar::{
    Compiled, Compiler, GrammarError, Vocabulary, is_small, trial_job, trial_verdict,
};
use penstock_http::{Level, log};
use penstock_openai::{ApiError, OutputGrammar};
use penstock_text::Tokenizer;
use penstock_wire::Grammar;
use tokio::sync::{Mutex as TaskMutex, OwnedSemaphorePermit};
use tokio::time::timeout;

use crate::app::App;
use crate::job_process::JobProcess;

/// Time to compile a grammar: ordinary ones take milliseconds.
const COMPILE_LIMIT: Duration = Duration::from_secs(3);
const RETRY_S: u32 = 1;
/// The longest wait for a trial, and for a thread that compiles.
const TURN_LIMIT: Duration = Duration::from_secs(10);
/// Verdicts that are kept.
const KEPT: usize = 1024;
/// Locks by which requests wait for the trial of one grammar.
const GATES: usize = 32;

type Verdict = Result<(), GrammarError>;

/// The compiler of the model's vocabulary, made with the first grammar.
#[derive(Default)]
pub(crate) struct Grammars {
    compiler: OnceLock<Result<Compiler, GrammarError>>,
    /// `None`: trials are left out.
    process: Option<JobProcess>,
    /// One grammar that is asked for many times at once has one trial.
    gates: [Arc<TaskMutex<()>>; GATES],
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

    /// Has the large ones of some grammars compiled in one other process, unless that has been
    /// done: those that it does not end are all too large. Takes no thread while it waits.
    ///
    /// # Errors
    /// [`GrammarError::TooLarge`]; [`GrammarError::Busy`].
    pub(crate) async fn try_out(app: &Arc<App>, grammars: &[Grammar]) -> Verdict {
        let own = &app.grammars;
        let large = grammars.iter().filter(|grammar| !is_small(grammar));
        let large: Vec<Grammar> = large.cloned().collect();
        let Some(process) = own.process.clone().filter(|_| !large.is_empty()) else {
            return Ok(());
        };
        let key = own.verdicts.key(&large);
        if let Some(verdict) = own.verdicts.known(key) {
            return verdict;
        }
        let gate = Arc::clone(&own.gates[key as usize % GATES]);
        let waited = timeout(TURN_LIMIT, async {
            let gate = gate.lock_owned().await;
            if let Some(verdict) = own.verdicts.known(key) {
                return Err(verdict);
            }
            let turn = app.lanes.trial_turn().await;
            turn.map(|turn| (gate, turn))
                .map_err(|_| Err(GrammarError::Busy))
        });
        let held = match waited.await {
            Ok(Ok(held)) => held,
            Ok(Err(verdict)) => return verdict,
            Err(_) => return Err(GrammarError::Busy),
        };
        let app = Arc::clone(app);
        let tried = tokio::task::spawn_blocking(move || {
            let _held = held;
            let verdict = app.grammars.tried(&app, &process, &large);
            app.grammars.verdicts.keep(key, &verdict);
            verdict
        });
        tried.await.unwrap_or(Err(GrammarError::Busy))
    }

    /// The outcome of a trial.
    fn tried(&self, app: &App, process: &JobProcess, grammars: &[Grammar]) -> Verdict {
        let text = app.text().map_err(|_| GrammarError::Busy)?;
        let job = trial_job(self.compiler(&text.tokenizer)?, grammars)?;
        match process.run(&job) {
            Ok(outcome) => trial_verdict(outcome.as_deref()),
            Err(error) => {
                let line = format!("the process that tries a grammar cannot start: {error}");
                log(Level::Warning, line);
                Err(GrammarError::Busy)
            }
        }
    }

    /// Waits for a thread that compiles some grammars, the large ones of which have been tried.
    ///
    /// # Errors
    /// [`GrammarError::Busy`].
    pub(crate) async fn turn(
        app: &App,
        grammars: &[Grammar],
    ) -> Result<OwnedSemaphorePermit, GrammarError> {
        let large = grammars.iter().any(|grammar| !is_small(grammar));
        let turn = timeout(TURN_LIMIT, app.lanes.grammar_turn(large)).await;
        turn.map_or(Err(GrammarError::Busy), |turn| {
            turn.map_err(|_| GrammarError::Busy)
        })
    }

    /// Compiles the grammar of a request, which has been tried; waits for it.
    ///
    /// # Errors
    /// 400 with the field and what is wrong; 503 while too many grammars are compiled.
    pub(crate) fn compile(
        &self,
        tokenizer: &Tokenizer,
        wanted: &OutputGrammar,
    ) -> Result<Compiled, ApiError> {
        let compiler = self.compiler(tokenizer);
        let compiled = compiler.and_then(|c| c.compile(&wanted.grammar, COMPILE_LIMIT));
        compiled.map_err(|error| api_error(wanted.field, wanted.field, &error))
    }

    /// Whether a grammar can hold an output to each of these schemas, of whose large ones `tried`
    /// was found: what one has that none can honour, or [`GrammarError::Busy`].
    pub(crate) fn check_schemas(
        &self,
        tokenizer: &Tokenizer,
        schemas: &[Grammar],
        tried: &Verdict,
    ) -> Vec<Verdict> {
        let compiler = match self.compiler(tokenizer) {
            Ok(compiler) => compiler,
            Err(error) => return vec![Err(error); schemas.len()],
        };
        let check = |schema: &Grammar| {
            if !is_small(schema) {
                tried.clone()?;
            }
            let key = self.verdicts.key(&("schema", schema));
            self.verdicts.known(key).unwrap_or_else(|| {
                let verdict = compiler.check_schema(&schema.text, COMPILE_LIMIT);
                self.verdicts.keep(key, &verdict);
                verdict
            })
        };
        schemas.iter().map(check).collect()
    }

    fn compiler(&self, tokenizer: &Tokenizer) -> Result<&Compiler, GrammarError> {
        let make = || Vocabulary::new(tokenizer).map(Compiler::new);
        self.compiler
            .get_or_init(make)
            .as_ref()
            .map_err(Clone::clone)
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

    fn known(&self, key: u64) -> Option<Verdict> {
        let kept = lock(&self.kept);
        let known = kept.iter().find(|(other, _)| *other == key);
        known.map(|(_, verdict)| verdict.clone())
    }

    fn keep(&self, key: u64, verdict: &Verdict) {
        // These two are of the moment.
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

/// 400 about `what` of a field; 503 while too many grammars are compiled.
pub(crate) fn api_error(field: &'static str, what: &str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Busy => {
            ApiError::unavailable("Too many grammars are being compiled.", RETRY_S)
        }
        error => ApiError::invalid(field, format!("{what}: {error}.")),
    }
}
