//! Trial compilation of large grammars in a separate process, which can be killed. Only grammars
//! that pass are compiled in this process.

use std::sync::Arc;
use std::time::Duration;

use penstock_structured_output::{Compiled, GrammarError, is_small, trial_job, trial_verdict};
use penstock_wire::Grammar;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tracing::warn;

use crate::app::App;
use crate::grammar::Verdict;
use crate::job_process::JobProcess;

/// Time-out of the wait for a trial, and for a compile thread.
const TURN_LIMIT: Duration = Duration::from_secs(10);

/// Grammars of a request, classified by estimated compile cost. Each grammar is parsed once for the
/// estimate.
pub(crate) struct Screening {
    grammars: Vec<Grammar>,
    /// By index: whether the grammar is large and needs a trial.
    large: Vec<bool>,
}

impl Screening {
    pub(crate) fn of(grammars: Vec<Grammar>) -> Self {
        let large = grammars.iter().map(|grammar| !is_small(grammar)).collect();
        Self { grammars, large }
    }

    /// The grammars, each with whether it is large.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&Grammar, bool)> {
        self.grammars.iter().zip(self.large.iter().copied())
    }

    /// Compiles all large grammars in one separate process. If it does not finish, all of them
    /// count as too large. Occupies no thread while waiting in the queue.
    ///
    /// # Errors
    /// [`GrammarError::TooLarge`]; [`GrammarError::Busy`]; no compiler for the vocabulary.
    pub(crate) async fn trial(&self, app: &Arc<App>) -> Verdict {
        let large = self.iter().filter(|(_, large)| *large);
        try_out(app, large.map(|(grammar, _)| grammar.clone()).collect()).await
    }

    /// Waits for a thread to compile the grammars, after their trial.
    ///
    /// # Errors
    /// [`GrammarError::Busy`].
    pub(crate) async fn turn(&self, app: &App) -> Result<OwnedSemaphorePermit, GrammarError> {
        let large = self.large.contains(&true);
        let turn = timeout(TURN_LIMIT, app.lanes.grammar_turn(large)).await;
        turn.map_or(Err(GrammarError::Busy), |turn| {
            turn.map_err(|_| GrammarError::Busy)
        })
    }
}

/// Whether a grammar compiles. Uses the cached result if there is one.
///
/// # Errors
/// Same as for [`compiled`].
pub(crate) async fn verdict(app: &Arc<App>, grammar: &Grammar) -> Verdict {
    let verdicts = &app.grammars.verdicts;
    let key = verdicts.key(&("whole", grammar));
    if let Some(verdict) = verdicts.known(key) {
        return verdict;
    }
    let verdict = compiled(app, grammar, drop).await;
    verdicts.keep(key, &verdict);
    verdict
}

/// Compiles a grammar in this process, after its trial, and runs `work` on it on the same blocking
/// thread.
///
/// # Errors
/// The compiler's error; [`GrammarError::TooLarge`]; [`GrammarError::Busy`].
pub(crate) async fn compiled<T: Send + 'static>(
    app: &Arc<App>,
    grammar: &Grammar,
    work: impl FnOnce(Compiled) -> T + Send + 'static,
) -> Result<T, GrammarError> {
    let screening = Screening::of(vec![grammar.clone()]);
    screening.trial(app).await?;
    let turn = screening.turn(app).await?;
    let (app, grammar) = (Arc::clone(app), grammar.clone());
    let outcome = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let text = app.text().map_err(|_| GrammarError::Busy)?;
        app.grammars.compile(&text.tokenizer, &grammar).map(work)
    });
    outcome.await.unwrap_or(Err(GrammarError::Busy))
}

async fn try_out(app: &Arc<App>, large: Vec<Grammar>) -> Verdict {
    let own = &app.grammars;
    let Some(process) = own.process.clone().filter(|_| !large.is_empty()) else {
        return Ok(());
    };
    let key = own.verdicts.key(&large);
    if let Some(verdict) = own.verdicts.known(key) {
        return verdict;
    }
    let gate = own.gate(key);
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
    let trial = tokio::task::spawn_blocking(move || {
        let _held = held;
        let verdict = tried(&app, &process, &large);
        app.grammars.verdicts.keep(key, &verdict);
        verdict
    });
    trial.await.unwrap_or(Err(GrammarError::Busy))
}

/// Runs a trial of `grammars` in a process of its own.
fn tried(app: &App, process: &JobProcess, grammars: &[Grammar]) -> Verdict {
    let text = app.text().map_err(|_| GrammarError::Busy)?;
    let job = trial_job(app.grammars.compiler(&text.tokenizer)?, grammars)?;
    match process.run(&job) {
        Ok(outcome) => trial_verdict(outcome.as_deref()),
        Err(error) => {
            warn!("the process that tries a grammar cannot start: {error}");
            Err(GrammarError::Busy)
        }
    }
}
