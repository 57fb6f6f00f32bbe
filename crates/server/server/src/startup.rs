//! Startup until the first request can be served, with a log line per stage.

use std::sync::Arc;
use std::time::Instant;

use penstock_engine_client::{Engine, EngineState, Observer};
use penstock_tokenizer::{ChatTemplate, Elsewhere, TextError, TextModel};
use penstock_wire::{Ready, Stage, StepStats};
use tracing::{debug, info, trace, warn};

use crate::app::App;
use crate::job_process::JobProcess;
use crate::metrics::Metrics;

/// Reason that a listening server cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    #[error("the model's tokenizer cannot be used: {0}")]
    Text(#[from] TextError),
    #[error(
        "the model's chat template cannot print one message of a user: {0}; start the server with \
         --chat-template and another one"
    )]
    Template(TextError),
    #[error("reading the tokenizer was interrupted")]
    Interrupted,
    #[error(
        "the tokenizer has {tokens} tokens and the model's embedding {rows} rows: they are not of \
         one model"
    )]
    Vocabulary { tokens: usize, rows: usize },
    #[error("{0}")]
    Engine(String),
}

/// Logs the stages of each engine start, and counts its steps.
#[derive(Debug)]
pub(crate) struct EngineLog {
    metrics: Arc<Metrics>,
}

impl EngineLog {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics }
    }
}

impl Observer for EngineLog {
    fn stage(&self, stage: &Stage) {
        info!("{}", stage_line(&stage.name, stage.seconds, &stage.detail));
    }

    fn step(&self, stats: &StepStats) {
        self.metrics.stepped(stats);
        trace!(
            "step {}: {} tokens in {:.1} ms, {} running, {} waiting",
            stats.step, stats.batch_tokens, stats.step_ms, stats.running, stats.waiting
        );
    }
}

/// Loads the tokenizer and template while the engine starts; returns when both are ready or one has
/// failed.
pub(crate) async fn complete(app: &Arc<App>) -> Result<Arc<Ready>, StartupError> {
    let ((), ready) = tokio::try_join!(read_text(app), follow_engine(&app.engine))?;
    Ok(ready)
}

async fn read_text(app: &Arc<App>) -> Result<(), StartupError> {
    let began = Instant::now();
    let (path, template) = (
        app.config.model_path.clone(),
        app.config.chat_template.clone(),
    );
    let opened = tokio::task::spawn_blocking(move || {
        let text = TextModel::open(&path, template.as_deref())?;
        let tried = text.template.as_ref().map(ChatTemplate::try_out);
        let refused = tried.transpose().map_err(StartupError::Template)?;
        for (what, error) in refused.into_iter().flatten() {
            let line = format!(
                "the chat template refuses {what} ({error}): such conversations are written in \
                 another form"
            );
            warn!("{line}");
        }
        Ok::<_, StartupError>(text)
    });
    let mut text = opened.await.map_err(|_| StartupError::Interrupted)??;
    let templates = JobProcess::new(&app.config.job_command, "template");
    text.elsewhere = templates.map(|process| Elsewhere::new(move |job| process.run(job)));
    let (tokens, rows) = (text.tokenizer.vocab_size(), app.config.vocab_size);
    if let Some(rows) = rows.filter(|&rows| tokens > rows) {
        return Err(StartupError::Vocabulary { tokens, rows });
    }
    debug!(
        "tokenizer read {:.2} s ({} tokens)",
        began.elapsed().as_secs_f64(),
        text.tokenizer.vocab_size()
    );
    app.set_text(Arc::new(text));
    Ok(())
}

async fn follow_engine(engine: &Engine) -> Result<Arc<Ready>, StartupError> {
    let mut states = engine.watch();
    loop {
        let state = states.borrow_and_update().clone();
        match state {
            EngineState::Starting => {}
            EngineState::Ready(ready) => return Ok(ready),
            EngineState::Down { .. } => warn!("{state}"),
            EngineState::Failed { .. } | EngineState::Unsupervised | EngineState::Stopped => {
                return Err(StartupError::Engine(state.to_string()));
            }
        }
        if states.changed().await.is_err() {
            return Err(StartupError::Engine(EngineState::Stopped.to_string()));
        }
    }
}

fn stage_line(name: &str, seconds: f64, detail: &str) -> String {
    let detail = if detail.is_empty() {
        String::new()
    } else {
        format!(" ({detail})")
    };
    format!("{name} {seconds:.2} s{detail}")
}

/// A ready engine's limits, for the log.
pub(crate) fn limits(ready: &Ready) -> String {
    format!(
        "context {} tokens, {} sequences",
        ready.max_model_len, ready.max_num_seqs,
    )
}

/// Logs each later loss and restart of the engine; returns its final state.
pub(crate) async fn log_changes(engine: Engine) -> EngineState {
    let mut states = engine.watch();
    states.mark_unchanged();
    drop(engine);
    while states.changed().await.is_ok() {
        let state = states.borrow_and_update().clone();
        match state {
            EngineState::Starting => {}
            EngineState::Ready(_) => info!("{state}"),
            EngineState::Down { .. } => warn!("{state}"),
            EngineState::Failed { .. } | EngineState::Unsupervised | EngineState::Stopped => {
                return state;
            }
        }
    }
    EngineState::Stopped
}
