//! A client's request: read and scanned once, then sent to a replica, and on a retry to another.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use memchr::memchr;
use penstock_api_http::{AccessRecord, Failure, is_anthropic};
use penstock_api_types::{ApiError, RESUMABLE};
use penstock_http::{BodyShare, Caller, Peer, SpanParent, request_id};
use penstock_prefix::{text_chain, text_seed};
use penstock_routing::Slo;
use tracing::Span;

use crate::charge::CostBasis;
use crate::form::boundary;
use crate::gateway::Gateway;
use crate::headers::to_replica;
use crate::members::{Members, RESPONSES};
use crate::paths::{TEXT, check_path};
use crate::pool::{Pool, Prompt};
use crate::scan::{Fields, ScanError};

/// Header with the session id; it takes precedence over the fields of the body.
const SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");

/// Headers with a request's latency targets (SLO) in milliseconds. The second name of each pair is
/// the current name in llm-d.
const SLO_TTFT_MS: [HeaderName; 2] = [
    HeaderName::from_static("x-slo-ttft-ms"),
    HeaderName::from_static("x-llm-d-slo-ttft-ms"),
];
const SLO_TPOT_MS: [HeaderName; 2] = [
    HeaderName::from_static("x-slo-tpot-ms"),
    HeaderName::from_static("x-llm-d-slo-tpot-ms"),
];

/// Method, path and headers of the request to a replica.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    method: Method,
    /// Path and query.
    path: String,
    pub(crate) headers: HeaderMap,
}

/// One proxied request.
#[derive(Debug)]
pub(crate) struct ProxiedRequest {
    pub(crate) id: String,
    pub(crate) head: Head,
    pub(crate) body: Bytes,
    fields: Fields,
    /// The model named by the client.
    pub(crate) asked: Option<String>,
    pub(crate) prompt: Prompt,
    /// The owner of the API key, whose token budget pays for the request.
    pub(crate) caller: Option<Arc<Caller>>,
    /// Inputs for the estimate of the response's cost.
    pub(crate) price: CostBasis,
    /// Whether the request is idempotent: a second execution does no harm.
    pub(crate) is_repeatable: bool,
    /// The request's access log entry, if it is logged.
    pub(crate) record: Option<AccessRecord>,
    /// The request's span, if its trace is exported.
    pub(crate) trace: Option<SpanParent>,
    /// Span that identifies the request in log lines below level info.
    pub(crate) span: Span,
    /// The body's share of the gateway's memory budget. Released once the body is sent.
    share: Option<BodyShare>,
}

impl ProxiedRequest {
    /// # Errors
    /// The body is too large, incomplete, or neither a JSON object nor a form; or the path is
    /// ambiguous.
    pub(crate) async fn read(gateway: &Gateway, request: Request<Body>) -> Result<Self, Failure> {
        let id = request_id(&request);
        let extensions = request.extensions();
        let caller = extensions.get::<Arc<Caller>>().cloned();
        let trace = extensions.get::<SpanParent>().cloned();
        let record = AccessRecord::of(&request);
        let peer: Option<SocketAddr> = extensions.get::<Peer>().and_then(|peer| peer.0);
        check_path(request.uri().path())?;
        let (method, path) = (request.method().clone(), path_of(request.uri()));
        let bare = request.uri().path().to_owned();
        let mut headers = request.headers().clone();
        let body = gateway.read_body(request).await?;
        let (body, share) = body.split();
        let read = read(method.as_str(), &bare, &headers, body, caller.as_deref())?;
        let ReadBody { fields, body, .. } = read;
        let asked = fields.model(&body);
        let prompt = prompt_of(&fields, &body, &headers);
        to_replica(&mut headers, peer, &id, &gateway.backend_key);
        match gateway.config.resume_timeout_s > 0.0 {
            true => headers.insert(RESUMABLE, HeaderValue::from_static("1")),
            false => headers.remove(RESUMABLE),
        };
        Ok(Self {
            id,
            asked,
            prompt,
            price: CostBasis::of(&bare, &fields, &body, caller.is_some()),
            is_repeatable: is_repeatable(&method, &bare, &body),
            caller,
            fields,
            body,
            record,
            trace,
            span: Span::current(),
            share: Some(share),
            head: Head {
                method,
                path,
                headers,
            },
        })
    }

    /// Tokenizes the prompt if `pool` needs its tokens for routing.
    pub(crate) async fn tokenize(&mut self, pool: &Pool) {
        let path = self.head.path.split('?').next().unwrap_or_default();
        pool.tokenize(&mut self.prompt, path, &self.body).await;
    }

    /// Replaces the model's name in the body, in place.
    pub(crate) fn rename(&mut self, model: &str) {
        if let Some(renamed) = self.fields.renamed(&self.body, model) {
            self.body = renamed;
        }
    }

    /// Marks the body as sent, which releases its share of the memory budget. With `stays`, the
    /// body stays in memory for a later retry.
    pub(crate) fn sent(&mut self, stays: bool) {
        self.share = None;
        if !stays {
            self.body = Bytes::new();
        }
    }

    /// The body with an added member `resume`: an array of `marks`, the comma-separated resume
    /// markers of the output so far.
    pub(crate) fn resumed(&self, marks: &[u8]) -> Bytes {
        let inside = memchr(b'{', &self.body).map_or(0, |at| at + 1);
        match marks.is_empty() {
            true => self.body.clone(),
            false => {
                let (before, after) = self.body.split_at(inside);
                [before, b"\"resume\":[", marks, b"],", after]
                    .concat()
                    .into()
            }
        }
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    pub(crate) fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// Whether errors must have Anthropic's format.
    pub(crate) fn is_anthropic(&self) -> bool {
        is_anthropic(self.path())
    }

    /// The path without its query.
    pub(crate) fn path(&self) -> &str {
        let path = self.head.path.split('?').next();
        path.unwrap_or_default()
    }
}

impl Head {
    /// The request to the replica at `url`.
    ///
    /// # Errors
    /// The path is not a valid URI.
    pub(crate) fn to(&self, url: &str, body: &Bytes) -> Result<Request<Bytes>, ApiError> {
        let uri: Result<Uri, _> = format!("{url}{}", self.path).parse();
        let uri = uri.map_err(|_| ApiError::no_route(&self.path))?;
        let mut request = Request::new(body.clone());
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        Ok(request)
    }
}

/// Endpoints whose requests do not use a prefix cache.
const WITHOUT_CACHE: [&str; 3] = ["/tokenize", "/detokenize", "/count_tokens"];

/// A request body and the byte ranges of its fields.
#[derive(Debug, Default)]
pub(crate) struct ReadBody {
    pub(crate) fields: Fields,
    pub(crate) body: Bytes,
    /// Whether the cache salt of the API key has been added to the body.
    pub(crate) is_salted: bool,
}

/// Locates the fields that routing needs, and adds the cache salt of the API key to the body.
/// `path` has no query.
///
/// # Errors
/// The body is neither a JSON object nor a form.
pub(crate) fn read(
    method: &str,
    path: &str,
    headers: &HeaderMap,
    body: Bytes,
    caller: Option<&Caller>,
) -> Result<ReadBody, ApiError> {
    let scan = |body: &[u8]| {
        let fields = fields_of(method, path, headers, body);
        fields.map_err(|error| ApiError::bad_request(error.to_string()))
    };
    let fields = scan(&body)?;
    let is_json = !body.is_empty() && boundary(headers).is_none();
    let has_cache = is_json && !WITHOUT_CACHE.iter().any(|one| path.ends_with(one));
    let own = caller.filter(|_| has_cache);
    let salt = own.and_then(|own| own.cache_salt(&fields.salt(&body).unwrap_or_default()));
    let Some(salt) = salt else {
        return Ok(ReadBody {
            fields,
            body,
            is_salted: false,
        });
    };
    let body = salted(&body, &fields, &salt);
    Ok(ReadBody {
        fields: scan(&body)?,
        body,
        is_salted: true,
    })
}

/// The body with its prefix-cache salt replaced or added.
fn salted(body: &[u8], fields: &Fields, salt: &str) -> Bytes {
    if let Some(place) = fields.cache_salt.clone() {
        let (before, after) = (&body[..place.start], &body[place.end..]);
        return [before, b"\"", salt.as_bytes(), b"\"", after]
            .concat()
            .into();
    }
    let inside = memchr(b'{', body).map_or(0, |at| at + 1);
    let (before, after) = body.split_at(inside);
    let comma: &[u8] = match after.trim_ascii_start().starts_with(b"}") {
        true => b"",
        false => b",",
    };
    let member = [b"\"cache_salt\":\"", salt.as_bytes(), b"\""].concat();
    [before, &member, comma, after].concat().into()
}

fn path_of(uri: &Uri) -> String {
    uri.path_and_query()
        .map_or("/", |path| path.as_str())
        .to_owned()
}

/// The fields of a body that routing uses. Only text endpoints require a body. From a form, only
/// the model is read.
fn fields_of(method: &str, path: &str, headers: &HeaderMap, body: &[u8]) -> Scanned {
    let asks =
        method == Method::POST.as_str() && (TEXT.contains(&path) || path.starts_with("/v1/chat/"));
    match boundary(headers) {
        _ if body.is_empty() && !asks => Ok(Fields::default()),
        Some(boundary) => Fields::of_form(body, &boundary),
        None => Fields::of(body),
    }
}

/// Whether the request is idempotent, so that it may be sent again after a replica may have
/// executed it. Requests that only read or compute are idempotent. Background responses, and
/// responses that are stored or appended to a conversation, have side effects.
fn is_repeatable(method: &Method, path: &str, body: &[u8]) -> bool {
    match *method {
        Method::GET | Method::HEAD => true,
        Method::POST if TEXT.contains(&path) => {
            let members = (path == RESPONSES).then(|| Members::of(body)).flatten();
            !members.is_some_and(|members| members.leave_something())
        }
        _ => false,
    }
}

type Scanned = Result<Fields, ScanError>;

/// Parses the first of the named headers that has a number, and converts it from milliseconds to
/// seconds; `None` if it is not positive.
fn seconds(headers: &HeaderMap, names: &[HeaderName]) -> Option<f32> {
    let mut values = names
        .iter()
        .filter_map(|name| headers.get(name)?.to_str().ok());
    let milliseconds: f32 = values.find_map(|text| text.trim().parse().ok())?;
    (milliseconds > 0.0 && milliseconds.is_finite()).then_some(milliseconds / 1e3)
}

/// The properties of the prompt that routing uses. Prompts with different models or salts share no
/// prefix.
pub(crate) fn prompt_of(fields: &Fields, body: &[u8], headers: &HeaderMap) -> Prompt {
    let texts = fields.prompt(body);
    let bytes = |range: &Option<std::ops::Range<usize>>| {
        range
            .as_ref()
            .map_or(&b""[..], |range| &body[range.clone()])
    };
    let salt = fields.salt(body);
    let seed = text_seed(&[
        bytes(&fields.model),
        salt.as_deref().unwrap_or_default().as_bytes(),
    ]);
    let header = headers.get(SESSION_ID).map(|value| value.as_bytes());
    let session = header.or_else(|| fields.session(body));
    Prompt {
        chain: text_chain(seed, &texts),
        bytes: texts.iter().map(|text| text.len()).sum(),
        tokens: Vec::new(),
        salted: salt.is_some(),
        session: session.map(|name| text_seed(&[name])),
        priority: 0,
        slo: Slo {
            ttft_s: seconds(headers, &SLO_TTFT_MS),
            tpot_s: seconds(headers, &SLO_TPOT_MS),
        },
        subset: None,
    }
}
