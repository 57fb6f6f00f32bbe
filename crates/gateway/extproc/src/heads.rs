//! Converts the headers and metadata in Envoy's messages into a picker's types.

use axum::http::{HeaderMap, HeaderName, HeaderValue as HttpValue, header};
use bytes::Bytes;

use crate::messages::{HeaderValue, HttpHeaders, Kind, Metadata};
use crate::picker::{AnswerHead, Head};
use crate::replies::NAMESPACE;

/// Metadata keys in which the data plane (Envoy) names the eligible endpoints, and the endpoint
/// that served a request.
const SUBSET_NAMESPACE: &str = "envoy.lb.subset_hint";
const SUBSET: &str = "x-gateway-destination-endpoint-subset";
const SERVED: &str = "x-gateway-destination-endpoint-served";

/// Converts a request's header. The eligible endpoints come from `metadata`.
pub(crate) fn head(message: HttpHeaders, metadata: &Metadata) -> Head {
    let (mut method, mut path) = (String::new(), String::new());
    let mut host = None;
    let mut headers = headers(message, |name, value| match name {
        ":method" => method = value,
        ":path" => path = value,
        ":authority" => host = HttpValue::try_from(value).ok(),
        _ => {}
    });
    if let Some(host) = host {
        headers.insert(header::HOST, host);
    }
    Head {
        method,
        path,
        headers,
        subset: metadata.get(SUBSET_NAMESPACE, SUBSET).map(addresses),
    }
}

/// Converts a response's header. A missing status counts as 500.
pub(crate) fn answer_head(message: HttpHeaders, metadata: &Metadata) -> AnswerHead {
    let mut status = 500;
    let headers = headers(message, |name, value| {
        if name == ":status" {
            status = value.parse().unwrap_or(500);
        }
    });
    let served = metadata.get(NAMESPACE, SERVED);
    let served = served.and_then(|kind| addresses(kind).into_iter().next());
    AnswerHead {
        status,
        headers,
        served,
    }
}

/// Converts HTTP headers. HTTP/2 pseudo-headers, such as `:path`, are passed to `pseudo`.
fn headers(message: HttpHeaders, mut pseudo: impl FnMut(&str, String)) -> HeaderMap {
    let mut found = HeaderMap::new();
    for header in message.headers.unwrap_or_default().headers {
        let HeaderValue {
            key,
            value,
            raw_value,
        } = header;
        let raw = if raw_value.is_empty() {
            Bytes::from(value)
        } else {
            raw_value
        };
        if key.starts_with(':') {
            pseudo(&key, String::from_utf8_lossy(&raw).into_owned());
        } else if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(key.as_bytes()),
            HttpValue::from_maybe_shared(raw),
        ) {
            found.append(name, value);
        }
    }
    found
}

/// Reads addresses from a list of strings or one comma-separated string: data planes send either.
fn addresses(kind: &Kind) -> Vec<String> {
    let split = |text: &String| -> Vec<String> {
        let parts = text.split(',').map(str::trim);
        parts
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect()
    };
    match kind {
        Kind::Text(text) => split(text),
        Kind::List(list) => {
            let kinds = list.values.iter().filter_map(|value| value.kind.as_ref());
            kinds.flat_map(addresses).collect()
        }
        Kind::Fields(_) => Vec::new(),
    }
}
