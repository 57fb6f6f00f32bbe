//! Grammars that may not end are compiled by a process that can be ended, before they are compiled
//! here.

use std::sync::Arc;
use std::time::Duration;

use penstock_grammar::{GrammarError, is_small, trial_job, trial_verdict};
use penstock_http::{Level, log};
use penstock_wire::Grammar;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::app::App;
use crate::grammar::Verdict;
use crate::job_process::JobProcess;

/// The longest wait for a trial, and for a thread that compiles.
const TURN_LIMIT: Duration = Duration::from_secs(10);

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

/// The outcome of a trial.
fn tried(app: &App, process: &JobProcess, grammars: &[Grammar]) -> Verdict {
    let text = app.text().map_err(|_| GrammarError::Busy)?;
    let job = trial_job(app.grammars.compiler(&text.tokenizer)?, grammars)?;
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
