//! HTTP headers that a proxy changes (RFC 9110, section 7.6).

use std::net::SocketAddr;

use axum::http::response::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Version, header};

use crate::config::{Config, ReplicaHeader};
use crate::pool::Routed;

pub(crate) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// The replica that answered.
pub(crate) const REPLICA: HeaderName = HeaderName::from_static("x-penstock-replica");
/// The reason why the replica was picked.
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-penstock-decision");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes the headers that apply to a single connection (hop-by-hop).
pub(crate) fn end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// Prepares the head of a replica's response for the client's connection: sets the version to
/// HTTP/1.1 and removes hop-by-hop headers. Removes `content-length` too if the response is
/// chunked.
pub(crate) fn to_client(parts: &mut Parts) {
    if parts.headers.contains_key(header::TRANSFER_ENCODING) {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
    end_to_end(&mut parts.headers);
    parts.version = Version::HTTP_11;
}

/// Adds the headers that name the replica, as far as the configuration allows. If the replica is
/// itself a gateway, its headers are replaced or removed.
pub(crate) fn name_replica(headers: &mut HeaderMap, config: &Config, routed: &Routed) {
    headers.remove(REPLICA);
    headers.remove(DECISION);
    headers.extend(replica_headers(config, routed));
}

/// The headers that name a replica. Omits a name that is invalid in a header.
pub(crate) fn replica_headers(
    config: &Config,
    routed: &Routed,
) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let shown = match config.replica_header {
        ReplicaHeader::Address => Some(&**routed.address()),
        ReplicaHeader::Name => Some(&*routed.name),
        ReplicaHeader::None => None,
    };
    let value = |text: &str| HeaderValue::from_str(text).ok();
    let replica = shown.and_then(value).map(|value| (REPLICA, value));
    let decision = config.explain.then(|| routed.choice.to_string());
    let decision = decision.and_then(|text| value(&text));
    let decision = decision.map(|value| (DECISION, value));
    replica.into_iter().chain(decision)
}

/// Whether the response is an uncompressed event stream, whose events the gateway reads.
pub(crate) fn is_read(headers: &HeaderMap) -> bool {
    is_stream(headers) && is_plain(headers)
}

/// Whether the response is uncompressed.
pub(crate) fn is_plain(headers: &HeaderMap) -> bool {
    let encoding = headers.get(header::CONTENT_ENCODING);
    encoding.is_none_or(|one| one.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Whether the response is an event stream.
pub(crate) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// Turns a client's headers into the headers of the request to a replica. Host and length differ.
/// Removes the offer of compression, because the gateway reads responses.
pub(crate) fn to_replica(
    headers: &mut HeaderMap,
    peer: Option<SocketAddr>,
    request_id: &str,
    key: &BackendKey,
) {
    end_to_end(headers);
    for name in [
        header::HOST,
        header::CONTENT_LENGTH,
        header::EXPECT,
        header::ORIGIN,
        header::ACCEPT_ENCODING,
    ] {
        headers.remove(name);
    }
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(REQUEST_ID, id);
    }
    if let Some(peer) = peer {
        let before = headers
            .get(FORWARDED_FOR)
            .and_then(|value| value.to_str().ok());
        let ip = peer.ip();
        let chain = before.map_or(ip.to_string(), |before| format!("{before}, {ip}"));
        if let Ok(chain) = HeaderValue::from_str(&chain) {
            headers.insert(FORWARDED_FOR, chain);
        }
    }
    match key {
        BackendKey::Clients => {}
        BackendKey::None => {
            headers.remove(header::AUTHORIZATION);
            headers.remove(X_API_KEY);
        }
        BackendKey::Own(bearer) => {
            headers.remove(X_API_KEY);
            headers.insert(header::AUTHORIZATION, bearer.clone());
        }
    }
}

/// The API key that the gateway sends to replicas.
#[derive(Debug, Clone)]
pub(crate) enum BackendKey {
    /// The client's key: the gateway requires no keys itself.
    Clients,
    None,
    Own(HeaderValue),
}

impl BackendKey {
    /// The key for the gateway's own requests.
    pub(crate) fn own(&self) -> Option<HeaderValue> {
        match self {
            Self::Own(bearer) => Some(bearer.clone()),
            Self::Clients | Self::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Response;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_connection_s_headers_stay_and_the_others_go_on() {
        let mut all = headers(&[
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("te", "trailers"),
            ("x-other", "2"),
        ]);
        end_to_end(&mut all);
        assert_eq!(all, headers(&[("x-other", "2")]));
    }

    #[test]
    fn an_answer_s_version_and_a_length_beside_chunks_stay() {
        let answer = Response::builder()
            .version(Version::HTTP_10)
            .header("transfer-encoding", "chunked")
            .header("content-length", "5")
            .header("x-other", "2");
        let (mut parts, ()) = answer.body(()).unwrap().into_parts();
        to_client(&mut parts);
        assert_eq!(parts.version, Version::HTTP_11);
        assert_eq!(parts.headers, headers(&[("x-other", "2")]));
        let (mut parts, ()) = Response::builder()
            .header("content-length", "5")
            .body(())
            .unwrap()
            .into_parts();
        to_client(&mut parts);
        assert_eq!(parts.headers, headers(&[("content-length", "5")]));
    }

    #[test]
    fn a_replica_gets_the_id_the_peer_and_the_right_key() {
        let client = headers(&[
            ("host", "gateway"),
            ("authorization", "Bearer client"),
            ("x-forwarded-for", "1.1.1.1"),
            ("content-length", "5"),
            ("accept-encoding", "gzip, br"),
        ]);
        let peer = Some(([10, 0, 0, 9], 4).into());
        let sent = |key: BackendKey| {
            let mut headers = client.clone();
            to_replica(&mut headers, peer, "id-1", &key);
            headers
        };
        let plain = sent(BackendKey::Clients);
        assert_eq!(plain["authorization"], "Bearer client");
        assert_eq!(plain["x-forwarded-for"], "1.1.1.1, 10.0.0.9");
        assert_eq!(plain["x-request-id"], "id-1");
        assert_eq!(plain.len(), 3);
        assert_eq!(sent(BackendKey::None).len(), 2);
        let own = sent(BackendKey::Own(HeaderValue::from_static("Bearer own")));
        assert_eq!(own["authorization"], "Bearer own");
    }
}
