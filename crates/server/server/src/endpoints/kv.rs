//! `/v1/kv`: administration of the KV cache. The router has already checked the admin key.
//!
//! Responses are the engine's replies, unchanged, so only the engine defines the contents of a
//! report.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Request, Uri};
use axum::response::Response;
use penstock_api_types::ApiError;
use penstock_api_types::{KvInput, KvRequest};
use penstock_engine_client::CommandError;
use penstock_wire::{KvOrder, KvOutcome, KvPrefix};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::tokenize::encoded;
use crate::app::App;
use crate::jobs::{Job, work_on};
use crate::lengths::check_prompt;
use penstock_api_http::{Failure, json};

/// Time-out of a cache command, longer than any engine step that it may wait for.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoQuery {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClearQuery {
    salt: Option<String>,
}

/// `GET /v1/kv`.
pub(crate) async fn report(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Failure> {
    let NoQuery {} = query(&uri)?;
    obeyed(&app, KvOrder::Report).await
}

/// `DELETE /v1/kv`: clears everything, the entries of one salt, or a prefix.
pub(crate) async fn clear(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    let ClearQuery { salt } = query(request.uri())?;
    let body = app.read_body(request).await?;
    let order = match (salt, body.bytes.is_empty()) {
        (None, true) => KvOrder::ClearAll,
        (None, false) => KvOrder::ClearPrefix(work_on(&app, body, prefix).await?),
        (Some(salt), true) if !salt.is_empty() => KvOrder::ClearSalt(salt.into_bytes()),
        (Some(_), true) => return Err(salt_error("salt must not be empty.").into()),
        (Some(_), false) => {
            let message = "salt does not go with a body: the salt of a prefix is its cache_salt.";
            return Err(salt_error(message).into());
        }
    };
    obeyed(&app, order).await
}

/// `POST /v1/kv/pin`.
pub(crate) async fn pin(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    of_prefix(&app, request, KvOrder::Pin).await
}

/// `POST /v1/kv/unpin`.
pub(crate) async fn unpin(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Failure> {
    of_prefix(&app, request, KvOrder::Unpin).await
}

async fn of_prefix(
    app: &Arc<App>,
    request: Request<Body>,
    order: impl FnOnce(KvPrefix) -> KvOrder,
) -> Result<Response, Failure> {
    let NoQuery {} = query(request.uri())?;
    let body = app.read_body(request).await?;
    let prefix = work_on(app, body, prefix).await?;
    obeyed(app, order(prefix)).await
}

/// Parses the query and rejects unknown parameters: with a misspelt `salt`, a DELETE would clear
/// everything.
fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, ApiError> {
    let parsed = Query::try_from_uri(uri);
    parsed
        .map(|Query(query)| query)
        .map_err(|error| ApiError::bad_request(format!("The query cannot be used: {error}.")))
}

fn salt_error(message: &str) -> ApiError {
    ApiError::invalid("salt", message)
}

/// The prefix in the request body, as token ids and cache salt.
fn prefix(job: &Job<'_>) -> Result<KvPrefix, ApiError> {
    let (app, request) = (job.app, KvRequest::parse(job.body)?);
    app.check_model(request.model.as_deref())?;
    let limits = app.limits().ok_or_else(|| app.engine_down())?;
    let tokens = match request.input {
        KvInput::Tokens(tokens) => tokens,
        KvInput::Written(input) => encoded(job, &input)?,
    };
    check_prompt(&tokens, &limits)?;
    if tokens.len() > limits.max_model_len as usize {
        return Err(ApiError::context_length(
            limits.max_model_len,
            tokens.len(),
            None,
        ));
    }
    Ok(KvPrefix {
        tokens,
        cache_salt: request.cache_salt.unwrap_or_default().into_bytes(),
    })
}

async fn obeyed(app: &App, order: KvOrder) -> Result<Response, Failure> {
    let reply = tokio::time::timeout(PATIENCE, app.engine.command(order))
        .await
        .map_err(|_| too_late())?;
    let reply = reply.map_err(|error| match error {
        CommandError::NotReady { .. } => app.engine_down(),
        CommandError::Lost { reason } => ApiError::engine_failed(&reason),
        CommandError::Invalid(error) => {
            ApiError::bad_request(format!("The request does not fit the wire: {error}."))
        }
    })?;
    match reply.outcome {
        KvOutcome::Done => Ok(json(reply.text.into_bytes())),
        KvOutcome::Refused => Err(ApiError::kv_refused(&reply.text).into()),
        KvOutcome::Failed => {
            let message = format!("The engine could not do that: {}.", reply.text);
            Err(ApiError::internal(message).into())
        }
    }
}

fn too_late() -> ApiError {
    let seconds = PATIENCE.as_secs();
    ApiError::unavailable(
        format!("The engine has not answered for {seconds} s; it may still do what was asked."),
        5,
    )
}
