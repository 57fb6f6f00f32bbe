//! Submits requests to the engine and maps its errors to API errors.

use std::task::{Context, Poll};

use penstock_api_types::ApiError;
use penstock_engine_client::{Event, RequestStream, SubmitError};
use penstock_wire::{Finish, Output, TokenRequest};
use tracing::debug;

use crate::app::App;

/// Submits a request; `hold` is dropped when the engine has ended it.
pub(crate) fn submit(
    app: &App,
    request: TokenRequest,
    hold: impl Send + 'static,
) -> Result<RequestStream, ApiError> {
    let (prompt, most) = (request.prompt.len(), request.max_tokens);
    let submitted = app.engine.submit_holding(request, hold);
    let submitted = submitted.inspect(|stream| {
        let id = stream.id();
        debug!("engine request {id}: {prompt} prompt tokens, at most {most} of output");
    });
    submitted.map_err(|error| match error {
        SubmitError::NotReady { .. } => app.engine_down(),
        SubmitError::Invalid(error) => {
            ApiError::bad_request(format!("The request does not fit the wire: {error}."))
        }
    })
}

/// Polls for the next output of a request. Any end reason other than stop or length is an error.
pub(crate) fn poll_output(
    events: &mut RequestStream,
    cx: &mut Context<'_>,
) -> Poll<Result<Output, ApiError>> {
    events.poll_next(cx).map(|event| match event {
        Some(Event::Output(mut output)) => refusal(&mut output).map(|()| output),
        Some(Event::Failed { reason }) => Err(ApiError::engine_failed(&reason)),
        None => Err(ApiError::internal(
            "The engine ended the request without a finish.",
        )),
    })
}

/// Maps any end reason other than stop or length to its error.
fn refusal(output: &mut Output) -> Result<(), ApiError> {
    match output.finish {
        Finish::None | Finish::Stop | Finish::Length => Ok(()),
        Finish::Rejected => Err(ApiError::queue_full(1)),
        Finish::Cancelled => Err(ApiError::unavailable("The engine is shutting down.", 5)),
        Finish::Error => {
            let reason = output.error.take();
            let reason = reason.as_deref().unwrap_or("it gave no reason");
            let message = format!("The engine could not run the request: {reason}.");
            Err(ApiError::internal(message))
        }
        Finish::Unfit => {
            let reason = output.error.take().unwrap_or_default();
            Err(ApiError::bad_request(format!(
                "The request cannot be run: {reason}."
            )))
        }
    }
}
