//! The grammar that a request wants for its output.

use std::sync::Arc;

use penstock_openai::{ApiError, Common};
use penstock_wire::Grammar;

use crate::app::App;
use crate::grammar::api_error;
use crate::grammar_trial;

/// The grammar of the request, if it has one, which compiles.
///
/// # Errors
/// Those of `Grammars::compile`; 400 for an output that no token could end, and for one that goes
/// on from tokens that the grammar forbids.
pub(crate) async fn checked(
    app: &Arc<App>,
    common: &Common,
) -> Result<Option<Arc<Grammar>>, ApiError> {
    let Some(wanted) = common.grammar.clone() else {
        return Ok(None);
    };
    let ends = app.engine.state().ready().map(|r| r.eos_token_ids.len());
    if ends == Some(0) && common.stop_token_ids.is_empty() {
        let message = format!(
            "{}: no token ends the output: send stop_token_ids.",
            wanted.field
        );
        return Err(ApiError::invalid(wanted.field, message));
    }
    let alone = std::slice::from_ref(&wanted.grammar);
    let refused = |error| api_error(wanted.field, wanted.field, &error);
    grammar_trial::try_out(app, alone).await.map_err(refused)?;
    let turn = grammar_trial::turn(app, alone).await.map_err(refused)?;
    let app = Arc::clone(app);
    let output = common.resume.as_ref().map(|resume| resume.tokens());
    let stops = common.stop_token_ids.clone();
    let checked = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        let compiled = app.grammars.compile(&app.text()?.tokenizer, &wanted)?;
        if let Some(output) = output {
            let ready = app.engine.state().ready().map(|r| r.eos_token_ids.clone());
            let ends = ready.into_iter().flatten().chain(stops).collect();
            if !compiled.allows(&output, ends) {
                let message = format!("resume: {} forbids its tokens.", wanted.field);
                return Err(ApiError::invalid("resume", message));
            }
        }
        Ok(Arc::new(wanted.grammar))
    });
    let failed = |_| Err(ApiError::internal("Compiling the grammar failed."));
    checked.await.unwrap_or_else(failed).map(Some)
}
