//! Metadata of a request: arrival time and caller.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::Request;
use penstock_api_http::AccessRecord;
use penstock_api_types::{Common, RESUMABLE};
use penstock_http::{Caller, SpanParent};
use tracing::Span;

/// Arrival time of a request, and the caller if its key has a name.
#[derive(Clone)]
pub(crate) struct RequestMeta {
    pub(crate) at: Instant,
    /// Unix time, in seconds.
    pub(crate) unix: u64,
    /// The client requests resume marks. Responses without support for them ignore this.
    pub(crate) marked: bool,
    pub(crate) caller: Option<Arc<Caller>>,
    /// Names the request in log lines below level info.
    pub(crate) span: Span,
    /// The request's span, if its trace is exported.
    pub(crate) trace: Option<SpanParent>,
    /// The request's access log entry, if it is logged.
    pub(crate) record: Option<AccessRecord>,
}

impl RequestMeta {
    pub(crate) fn of(request: &Request<Body>) -> Self {
        Self {
            at: Instant::now(),
            unix: unix_now(),
            marked: request.headers().contains_key(RESUMABLE),
            caller: request.extensions().get::<Arc<Caller>>().cloned(),
            span: Span::current(),
            trace: request.extensions().get::<SpanParent>().cloned(),
            record: AccessRecord::of(request),
        }
    }

    /// `created` of the response in Unix seconds; a resumed response keeps its first value.
    pub(crate) fn created(&self, common: &Common) -> u64 {
        let resume = common.resume.as_ref();
        resume.map_or(self.unix, |resume| resume.origin.created)
    }

    /// The request's cache salt. A key with a separate cache replaces it with a derived salt.
    pub(crate) fn salt(&self, asked: Option<&str>) -> Vec<u8> {
        let asked = asked.unwrap_or_default();
        let own = self.caller.as_ref();
        let own = own.and_then(|caller| caller.cache_salt(asked));
        own.unwrap_or_else(|| asked.to_owned()).into_bytes()
    }
}

/// Unix time in seconds.
pub(crate) fn unix_now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
