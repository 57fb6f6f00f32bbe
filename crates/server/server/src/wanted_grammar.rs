//! The output grammar of a request.

use std::sync::Arc;

use penstock_api_types::{ApiError, Common};
use penstock_structured_output::Compiled;
use penstock_wire::Grammar;

use crate::app::App;
use crate::grammar::api_error;
use crate::grammar_trial;

/// Returns the request's grammar, if any, after checking that it compiles.
///
/// # Errors
/// 400 if the grammar is faulty, if no token could end the output, or if the grammar rejects the
/// resumed output; 503 while too many grammars are being compiled.
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
    let error = |error| api_error(wanted.field, wanted.field, &error);
    if let Some(resume) = &common.resume {
        let output = resume.tokens();
        let ready = app.engine.state().ready().map(|r| r.eos_token_ids.clone());
        let stops = common.stop_token_ids.iter().copied();
        let ends = ready.into_iter().flatten().chain(stops).collect();
        let work = move |compiled: Compiled| compiled.allows(&output, ends);
        let compiled = grammar_trial::compiled(app, &wanted.grammar, work).await;
        if !compiled.map_err(error)? {
            let message = format!("resume: {} forbids its tokens.", wanted.field);
            return Err(ApiError::invalid("resume", message));
        }
    } else {
        let verdict = grammar_trial::verdict(app, &wanted.grammar).await;
        verdict.map_err(error)?;
    }
    Ok(Some(Arc::new(wanted.grammar)))
}
