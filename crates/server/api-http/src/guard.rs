//! Middleware for every request: request id, API key and origin checks, then metrics and the access
//! log.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use penstock_api_types::ApiError;
use penstock_http::{
    Bearer, Caller, Exchange, ExchangeEnd, KeyPermit, Keys, OpenSpan, RandomIds, RateLimited,
    RequestCounts, TraceContext, Tracer, has_key, is_below, request_id, with_request_id,
};
use penstock_page::is_public;
use tracing::{Instrument, debug_span};

use crate::access::{AccessLine, AccessRecord, log_access};
use crate::failure::{Failure, log_refusal};
use crate::{anthropic, cors};

/// Paths for probes and scrapers, which need no key.
const OPEN: [&str; 5] = ["/health", "/metrics", "/metrics/stream", "/ping", "/ready"];

/// This path and all paths below it require the admin key instead of an API key.
const ADMIN: &str = "/v1/kv";

/// Maximum number of logged characters of a path.
const MOST_LOGGED: usize = 200;

/// Settings and state of the checks.
#[derive(Debug)]
pub struct Guard {
    pub keys: Keys,
    /// The key of `/v1/kv`. `None` disables these endpoints.
    pub admin_key: Option<String>,
    /// CORS: origins allowed to use the server from a browser; `*` allows all.
    pub allowed_origins: Vec<String>,
    /// Whether the web page is served; its files need no key.
    pub page: bool,
    /// Log one line for each request that is no probe or scrape.
    pub access_log: bool,
    /// Metrics of requests by handler, failed ones included.
    pub counts: Arc<RequestCounts>,
    pub ids: RandomIds,
    /// `None`: no traces are exported.
    pub tracer: Option<Tracer>,
}

/// Status, in log and metrics, of a request whose client disconnected before the response; as in
/// nginx.
const CLIENT_LEFT: u16 = 499;

/// Identification of a request in the log.
struct RequestNames {
    id: String,
    /// The client's trace id, or the id of an exported trace.
    trace_id: Option<String>,
    /// The path, truncated.
    path: String,
    /// `None`: the request is not logged.
    record: Option<AccessRecord>,
}

/// Counts and logs a request once, at the end of its response. A drop before that means that the
/// client disconnected, and counts as the end.
struct Observation {
    guard: Arc<Guard>,
    exchange: Exchange,
    names: RequestNames,
    permit: Option<CallerPermit>,
    trace: Option<OpenSpan>,
    ended: bool,
}

/// Middleware for [`axum::middleware::from_fn_with_state`]. Assigns a request id, rejects requests
/// without a valid key, and observes the end of the response.
pub async fn guarded(
    State(guard): State<Arc<Guard>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let exchange = Exchange::begin(&request);
    let ids = guard.clone();
    with_request_id(&ids.ids, request, |mut request| async move {
        let id = request_id(&request);
        let path: String = request.uri().path().chars().take(MOST_LOGGED).collect();
        let client = TraceContext::of(request.headers());
        let traced = may_cost(request.method(), request.uri().path());
        let tracer = guard.tracer.as_ref().filter(|_| traced);
        let trace = tracer.and_then(|tracer| {
            let name = format!("{} {}", exchange.method, exchange.handler);
            let mut span = tracer.request(name, client.as_ref())?;
            describe(&mut span, &exchange, &path, &id);
            Some(span)
        });
        if let Some(trace) = &trace {
            request.extensions_mut().insert(trace.parent());
        }
        let is_logged = guard.access_log && !OPEN.contains(&path.as_str());
        let record = is_logged.then(AccessRecord::default);
        if let Some(record) = &record {
            request.extensions_mut().insert(record.clone());
        }
        let context = trace.as_ref().map(OpenSpan::context).or(client.as_ref());
        let trace_id = context.map(TraceContext::trace_hex);
        let span = debug_span!("request", message = %id, request_id = id);
        let names = RequestNames {
            id,
            trace_id,
            path,
            record,
        };
        let mut observation = Observation {
            guard: guard.clone(),
            exchange,
            names,
            permit: None,
            trace,
            ended: false,
        };
        let permit = &mut observation.permit;
        let response = checked(&guard, request, next, permit)
            .instrument(span)
            .await;
        observation.observe(response)
    })
    .await
}

/// Sets the attributes of a request's span that are known when the request arrives.
fn describe(span: &mut OpenSpan, exchange: &Exchange, path: &str, id: &str) {
    let client = exchange.peer.map(|peer| peer.ip().to_string());
    span.set("http.request.method", exchange.method);
    span.set("http.route", exchange.handler.as_str());
    span.set("url.path", path);
    span.set("client.address", client);
    span.set("gen_ai.request.id", id);
}

/// Runs the checks and then the endpoint. Sets the permit to hold until the response has ended.
async fn checked(
    guard: &Guard,
    mut request: Request<Body>,
    next: Next,
    permit: &mut Option<CallerPermit>,
) -> Response {
    let origins = &guard.allowed_origins;
    if let Some(response) = cors::preflight(origins, &request) {
        return response;
    }
    let origin = cors::allowed_origin(origins, request.headers());
    let anthropic = anthropic::is_here(request.uri().path()).then(|| request_id(&request));
    let mut response = match guard.admit(&request) {
        Ok(admitted) => {
            if let Some(admitted) = &admitted {
                request.extensions_mut().insert(admitted.caller.clone());
            }
            *permit = admitted;
            next.run(request).await
        }
        Err(error) => Failure(error).into_response(),
    };
    if let Some(request_id) = anthropic {
        anthropic::in_own_form(&mut response, &request_id);
    }
    if let Some(origin) = origin {
        cors::allow(response.headers_mut(), origin);
    }
    response
}

impl Guard {
    /// Checks the key, the origin and, if the request may cause engine work, the key's limits. Hold
    /// the permit of a named key until the response has ended.
    ///
    /// # Errors
    /// One of the checks fails.
    pub fn admit(&self, request: &Request<Body>) -> Result<Option<CallerPermit>, ApiError> {
        let bearer = check_key(self, request)?;
        check_endpoint(&bearer, request.uri().path())?;
        cors::check_origin(&self.allowed_origins, request)?;
        admit(bearer, request)
    }
}

/// An admitted request of a named key.
#[derive(Debug)]
pub struct CallerPermit {
    pub caller: Arc<Caller>,
    /// Set if the request may cause engine work and counts against the key's limits.
    _running: Option<KeyPermit>,
}

/// Counts a request that may cause engine work against its key's limits.
fn admit(bearer: Bearer, request: &Request<Body>) -> Result<Option<CallerPermit>, ApiError> {
    let Bearer::Named(caller) = bearer else {
        return Ok(None);
    };
    if !may_cost(request.method(), request.uri().path()) {
        return Ok(Some(CallerPermit {
            caller,
            _running: None,
        }));
    }
    let admitted = caller.usage.admit(&caller.limits, Instant::now());
    let running = admitted.map_err(
        |RateLimited {
             limit,
             most,
             retry_after_s,
         }| { ApiError::rate_limited(limit, most, retry_after_s) },
    )?;
    Ok(Some(CallerPermit {
        caller,
        _running: Some(running),
    }))
}

/// Whether a request may cause engine work: every POST, and everything below `/v1` except the model
/// list, which the server answers itself.
fn may_cost(method: &Method, path: &str) -> bool {
    *method == Method::POST || (is_below(path, "/v1") && !is_below(path, "/v1/models"))
}

impl Observation {
    /// Logs a rejection at once, and counts the request when its response has ended.
    fn observe(mut self, response: Response) -> Response {
        let (names, method) = (&self.names, self.exchange.method);
        // Probes repeat, so their failures are not logged.
        let refusal = response.extensions().get::<ApiError>();
        if let Some(error) = refusal.filter(|_| !OPEN.contains(&names.path.as_str())) {
            log_refusal(
                &names.id,
                names.trace_id.as_deref(),
                method,
                &names.path,
                error,
            );
        }
        let exchange = self.exchange.clone();
        exchange.observe(response, move |end| self.end(&end))
    }

    fn end(&mut self, end: &ExchangeEnd) {
        self.ended = true;
        self.guard.counts.count(&self.exchange, end);
        if let Some(trace) = &mut self.trace {
            trace.set("http.response.status_code", end.status);
            match end.complete {
                true if end.status < 500 => {}
                true => trace.fail(end.status),
                false => trace.fail("incomplete"),
            }
        }
        let Some(record) = &self.names.record else {
            return;
        };
        let peer = self.exchange.peer;
        let client = peer.map_or("unix".to_owned(), |peer| peer.to_string());
        let line = AccessLine {
            id: &self.names.id,
            client: &client,
            method: self.exchange.method,
            path: &self.names.path,
            key: self
                .permit
                .as_ref()
                .map(|permit| permit.caller.name.as_str()),
            status: end.status,
            bytes: Some(end.bytes),
            duration: end.duration,
            complete: end.complete,
            trace_id: self.names.trace_id.as_deref(),
        };
        log_access(&line, &record.facts());
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if !self.ended {
            self.end(&ExchangeEnd {
                status: CLIENT_LEFT,
                duration: self.exchange.arrived.elapsed(),
                bytes: 0,
                complete: false,
            });
        }
    }
}

fn check_key(guard: &Guard, request: &Request<Body>) -> Result<Bearer, ApiError> {
    let path = request.uri().path();
    if is_admin(path) {
        let key = guard.admin_key.as_ref();
        let key = key.ok_or_else(ApiError::admin_disabled)?;
        let known = has_key(std::slice::from_ref(key), request);
        return known
            .then_some(Bearer::Anyone)
            .ok_or_else(ApiError::admin_unauthorized);
    }
    if OPEN.contains(&path) || is_public(path, request.headers(), guard.page) {
        return Ok(Bearer::Anyone);
    }
    guard
        .keys
        .bearer(request)
        .ok_or_else(ApiError::unauthorized)
}

/// Whether the path needs the admin key. Case-insensitive, because some proxies and servers ignore
/// the case of paths.
fn is_admin(path: &str) -> bool {
    let start = path.get(..ADMIN.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(ADMIN))
        && is_below(path, &path[..ADMIN.len()])
}

/// Checks that a named key may use the endpoint. Probes and scrapers need no key.
fn check_endpoint(bearer: &Bearer, path: &str) -> Result<(), ApiError> {
    match bearer {
        Bearer::Named(caller) if !caller.may_reach(path) => {
            Err(ApiError::endpoint_forbidden(&caller.name, path))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_to_an_engine_may_cost_whatever_its_method() {
        for (method, path, wanted) in [
            ("POST", "/tokenize", true),
            ("POST", "/v1/models/m", true),
            ("GET", "/v1/files/f", true),
            ("HEAD", "/v1/files/f", true),
            ("PUT", "/v1/uploads/u", true),
            ("PATCH", "/v1/x", true),
            ("DELETE", "/v1/responses/r", true),
            ("GET", "/v1/models", false),
            ("GET", "/v1/models/org/m", false),
            ("GET", "/v1/models_of_others", true),
            ("GET", "/version", false),
        ] {
            let method: Method = method.parse().unwrap();
            assert_eq!(may_cost(&method, path), wanted, "{method} {path}");
        }
    }
}
