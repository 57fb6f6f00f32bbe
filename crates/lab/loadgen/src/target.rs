//! The server to send requests to, and the settings of the client.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Uri, http};
use serde::Deserialize;
use thiserror::Error;

/// Why a target's description is invalid.
#[derive(Debug, Error)]
pub enum TargetError {
    #[error("target: {0}")]
    Json(#[from] serde_json::Error),
    #[error("base_url {url:?}: {problem}; it must look like http://host:port or https://host:port")]
    Url { url: String, problem: String },
    #[error("header {name:?}: {problem}")]
    Header { name: String, problem: String },
    #[error("{field}: {problem}")]
    Setting {
        field: &'static str,
        problem: &'static str,
    },
    #[error("https: {0}")]
    Tls(String),
}

/// A target as described in JSON, not validated.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    base_url: String,
    path: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    max_concurrency: Option<usize>,
    #[serde(default = "default_connect_timeout")]
    connect_timeout_s: f64,
    idle_timeout_s: Option<f64>,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    keep_text: bool,
}

fn default_connect_timeout() -> f64 {
    60.0
}

/// A validated target.
#[derive(Debug, Clone)]
pub struct Target {
    pub(crate) https: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query, after the path of the base URL.
    pub(crate) path: Uri,
    pub(crate) headers: HeaderMap,
    /// Maximum number of open requests.
    pub(crate) max_concurrency: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    /// Whether certificates are accepted without verification.
    pub(crate) insecure: bool,
    pub(crate) keep_text: bool,
}

impl Target {
    /// Parses a JSON object with the members of `Description`.
    pub fn from_json(json: &str) -> Result<Self, TargetError> {
        let given: Description = serde_json::from_str(json)?;
        if given.max_concurrency == Some(0) {
            return Err(TargetError::Setting {
                field: "max_concurrency",
                problem: "0 places can carry no request; give 1 or more, or null",
            });
        }
        let base = Base::parse(&given.base_url)?;
        let path = format!("{}{}", base.path, given.path);
        Ok(Self {
            path: path
                .parse()
                .map_err(|e: http::uri::InvalidUri| TargetError::Url {
                    url: given.base_url.clone() + &given.path,
                    problem: e.to_string(),
                })?,
            headers: headers(&base, &given.headers)?,
            https: base.https,
            host: base.host,
            port: base.port,
            max_concurrency: given.max_concurrency.unwrap_or(usize::MAX),
            connect_timeout: seconds("connect_timeout_s", given.connect_timeout_s)?,
            idle_timeout: given
                .idle_timeout_s
                .map(|idle| seconds("idle_timeout_s", idle))
                .transpose()?,
            insecure: given.insecure,
            keep_text: given.keep_text,
        })
    }
}

fn seconds(field: &'static str, value: f64) -> Result<Duration, TargetError> {
    let problem = "must be a positive number of seconds";
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err(TargetError::Setting { field, problem }),
    }
}

struct Base {
    https: bool,
    host: String,
    port: u16,
    authority: String,
    path: String,
}

impl Base {
    fn parse(url: &str) -> Result<Self, TargetError> {
        let wrong = |problem: &str| TargetError::Url {
            url: url.to_owned(),
            problem: problem.to_owned(),
        };
        let uri: Uri = url
            .parse()
            .map_err(|e: http::uri::InvalidUri| wrong(&e.to_string()))?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("the scheme is neither http nor https")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("there is no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("put credentials into a header"));
        }
        if uri.query().is_some() {
            return Err(wrong("a query has no place here"));
        }
        let host = uri.host().unwrap_or_default();
        Ok(Self {
            https,
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
            port: uri.port_u16().unwrap_or(if https { 443 } else { 80 }),
            authority: authority.to_string(),
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

fn headers(base: &Base, given: &BTreeMap<String, String>) -> Result<HeaderMap, TargetError> {
    let mut headers = HeaderMap::new();
    let agent = concat!("penstock-bench/", env!("CARGO_PKG_VERSION"));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
    headers.insert(header::HOST, header_value("host", &base.authority)?);
    for (name, value) in given {
        let parsed: HeaderName = name.parse().map_err(|_| TargetError::Header {
            name: name.clone(),
            problem: "not a header name".to_owned(),
        })?;
        if matches!(
            parsed,
            header::CONTENT_LENGTH | header::TRANSFER_ENCODING | header::CONNECTION
        ) {
            return Err(TargetError::Header {
                name: name.clone(),
                problem: "is set by the client itself".to_owned(),
            });
        }
        headers.insert(parsed, header_value(name, value)?);
    }
    Ok(headers)
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, TargetError> {
    HeaderValue::from_str(value).map_err(|_| TargetError::Header {
        name: name.to_owned(),
        problem: "its value has characters that a header cannot carry".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(base_url: &str) -> Result<Target, TargetError> {
        let json = serde_json::json!({
            "base_url": base_url,
            "path": "/v1/completions",
            "headers": {"Authorization": "Bearer x"},
        });
        Target::from_json(&json.to_string())
    }

    #[test]
    fn urls() {
        let plain = target("http://127.0.0.1:8000").unwrap();
        assert_eq!(
            (plain.host.as_str(), plain.port, plain.https),
            ("127.0.0.1", 8000, false)
        );
        assert_eq!(plain.path, "/v1/completions");
        assert_eq!(plain.headers["host"], "127.0.0.1:8000");
        assert_eq!(plain.headers["authorization"], "Bearer x");
        let prefixed = target("https://[::1]/api/").unwrap();
        assert_eq!(
            (prefixed.host.as_str(), prefixed.port, prefixed.https),
            ("::1", 443, true)
        );
        assert_eq!(prefixed.path, "/api/v1/completions");
    }

    #[test]
    fn wrong_descriptions_are_named() {
        for (url, named) in [
            ("ftp://host", "scheme"),
            ("host:80", "scheme"),
            ("http://user:secret@host", "credentials"),
            ("http://host/?a=b", "query"),
            ("http://ho st", "invalid"),
        ] {
            let message = target(url).unwrap_err().to_string();
            assert!(message.contains(named), "{url}: {message}");
        }
        for (json, named) in [
            (
                r#"{"base_url": "http://h", "path": "/", "max_concurrency": 0}"#,
                "max_concurrency",
            ),
            (
                r#"{"base_url": "http://h", "path": "/", "idle_timeout_s": -1}"#,
                "idle_timeout_s",
            ),
            (
                r#"{"base_url": "http://h", "path": "/", "connect_timeout_s": 0}"#,
                "connect_timeout_s",
            ),
            (
                r#"{"base_url": "http://h", "path": "/", "speed": 1}"#,
                "speed",
            ),
            (
                r#"{"base_url": "http://h", "path": "/", "headers": {"a b": ""}}"#,
                "a b",
            ),
            (
                r#"{"base_url": "http://h", "path": "/", "headers": {"content-length": "1"}}"#,
                "client itself",
            ),
            ("{", "EOF"),
        ] {
            let message = Target::from_json(json).unwrap_err().to_string();
            assert!(message.contains(named), "{json}: {message}");
        }
    }
}
