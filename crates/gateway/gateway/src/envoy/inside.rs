//! State of a request that Envoy proxies, from its header to the end of the response.

use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{Request, header};
use axum::response::IntoResponse;
use penstock_api_http::{AccessRecord, CallerPermit, Failure, is_anthropic, log_refusal};
use penstock_api_types::{ApiError, anthropic_error};
use penstock_extproc::{Head, Refusal};
use penstock_http::{BodyError, TraceContext, id_of};

use crate::gateway::{Gateway, RequestPermit};
use crate::paths::check_path;

/// An admitted request.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) name: Name,
    pub(crate) arrived: Instant,
    /// Permit of the API key, if the key has a name.
    pub(crate) permit: Option<CallerPermit>,
    /// `None`: the access log is off.
    pub(crate) record: Option<AccessRecord>,
    _request_permit: RequestPermit,
}

impl Inside {
    /// Runs the proxy's checks before the body is read.
    ///
    /// # Errors
    /// The request is rejected.
    pub(crate) fn admit(gateway: &Arc<Gateway>, head: &Head, name: Name) -> Result<Self, ApiError> {
        let permit = gateway.guard.admit(&as_request(head)?)?;
        check_path(&name.path)?;
        let request_permit = gateway.admit()?;
        let encoding = head.headers.get(header::CONTENT_ENCODING);
        if encoding.is_some_and(|e| !e.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(Failure::from(BodyError::Encoded).0);
        }
        Ok(Self {
            gateway: gateway.clone(),
            name,
            arrived: Instant::now(),
            permit,
            record: gateway.config.access_log.then(AccessRecord::default),
            _request_permit: request_permit,
        })
    }
}

/// Identification of a request in the log and in errors.
#[derive(Debug, Clone)]
pub(crate) struct Name {
    pub(crate) id: String,
    /// The trace id that the client sent, if any.
    pub(crate) trace_id: Option<String>,
    pub(crate) method: String,
    /// The path without its query.
    pub(crate) path: String,
}

/// Maximum length of a logged path, in characters.
const MOST_LOGGED: usize = 200;

impl Name {
    pub(crate) fn of(head: &Head, gateway: &Gateway) -> Self {
        let path = head.path.split('?').next().unwrap_or_default();
        Self {
            id: id_of(&head.headers, &gateway.guard.ids),
            trace_id: TraceContext::of(&head.headers).map(|trace| trace.trace_hex()),
            method: head.method.clone(),
            path: path.to_owned(),
        }
    }

    pub(crate) fn logged_path(&self) -> String {
        self.path.chars().take(MOST_LOGGED).collect()
    }

    /// The error response to a rejected request, in the format of the API that its path belongs to.
    pub(crate) fn refusal(&self, error: ApiError) -> Refusal {
        let (trace_id, path) = (self.trace_id.as_deref(), self.logged_path());
        log_refusal(&self.id, trace_id, &self.method, &path, &error);
        let body = match is_anthropic(&self.path) {
            true => anthropic_error(&error, &self.id),
            false => error.to_json(),
        };
        let (status, reason) = (error.status, error.code.unwrap_or(error.kind));
        let (parts, _) = Failure(error).into_response().into_parts();
        let pairs = parts.headers.iter();
        let pairs = pairs.filter(|(name, _)| **name != header::CONTENT_LENGTH);
        let headers = pairs.map(|(name, value)| (name.clone(), value.clone()));
        Refusal {
            status,
            headers: headers.collect(),
            body: Bytes::from(body),
            reason,
        }
    }
}

/// The header as an HTTP request, which is the input of the proxy's checks.
fn as_request(head: &Head) -> Result<Request<Body>, ApiError> {
    let mut request = Request::new(Body::empty());
    let wrong = || ApiError::bad_request("The request's header is malformed.");
    *request.method_mut() = head.method.parse().map_err(|_| wrong())?;
    *request.uri_mut() = head.path.parse().map_err(|_| wrong())?;
    *request.headers_mut() = head.headers.clone();
    Ok(request)
}
