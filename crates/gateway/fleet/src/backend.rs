//! Backends (the servers that the configuration names), and the sources of their list.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_http::shown_url;
use penstock_kube::Cluster;
use serde::Deserialize;
use url::Url;

/// A server that hosts a replica, identified by its URL.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    /// `http://host:port` or `https://host:port`. A path in the URL is prefixed to the path of each
    /// request. A trailing `/v1`, as in clients' base URLs, is ignored.
    pub url: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl Backend {
    /// A backend without labels.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            labels: BTreeMap::new(),
        }
    }
}

/// Source of the list of backends.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Source {
    Static(Vec<Backend>),
    /// A JSON array of backends, or one URL per line; reloaded when it changes.
    File(PathBuf),
    /// Addresses (A and AAAA records) of a host name, looked up periodically.
    Dns {
        name: String,
        port: u16,
    },
    /// Pods that are ready, found by a watch.
    Kubernetes(Box<Pods>),
}

/// Selection of the pods of a Kubernetes namespace that are backends.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pods {
    pub cluster: Cluster,
    pub namespace: String,
    /// Name of an InferencePool. Its selector selects the pods; its target ports are their ports.
    #[serde(default)]
    pub inference_pool: Option<String>,
    /// A label selector such as `app=llama,tier in (a,b)`. With an InferencePool, pods must match
    /// both.
    #[serde(default)]
    pub selector: Option<String>,
    /// Ports of the backends. They override the target ports of the InferencePool.
    #[serde(default)]
    pub ports: Vec<u16>,
}

/// Why a backend is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{:?} is no backend: {reason}; http://10.0.0.1:8000 is one",
    shown_url(url)
)]
pub struct BackendError {
    pub url: String,
    pub reason: String,
}

/// A validated backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// `http://host:port/path`, without a slash at the end.
    pub base: Arc<str>,
    /// `host:port/path`.
    pub address: Arc<str>,
    /// A short name that does not reveal the address: the label `name`, else a hash.
    pub name: Arc<str>,
    pub labels: Arc<[(Arc<str>, Arc<str>)]>,
}

impl Target {
    /// # Errors
    /// [`BackendError`]
    pub(crate) fn new(backend: &Backend) -> Result<Self, BackendError> {
        let wrong = |reason: String| BackendError {
            url: backend.url.clone(),
            reason,
        };
        let url = Url::parse(&backend.url).map_err(|error| wrong(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(format!("the scheme is {}", url.scheme())));
        }
        let bare = url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none();
        if !bare {
            return Err(wrong("it has more than host, port and path".to_owned()));
        }
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or(80);
        let path = url.path().trim_end_matches('/');
        if path.contains("//") || path.contains('%') {
            return Err(wrong("its path is not plain".to_owned()));
        }
        let path = path.strip_suffix("/v1").unwrap_or(path);
        let address = format!("{host}:{port}{path}");
        let label = |(key, value): (&String, &String)| (key.as_str().into(), value.as_str().into());
        let name = match backend.labels.get("name").filter(|name| !name.is_empty()) {
            Some(name) => name.clone(),
            None => format!("{:08x}", hash(address.as_bytes())),
        };
        Ok(Self {
            base: format!("{}://{address}", url.scheme()).into(),
            address: address.into(),
            name: name.into(),
            labels: backend.labels.iter().map(label).collect(),
        })
    }
}

/// FNV-1a (Fowler, Noll and Vo): stable across gateways and releases.
fn hash(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step)
}

/// Validates all backends. Of backends with equal URLs, only the first one is kept.
///
/// # Errors
/// [`BackendError`] of the first invalid backend.
pub(crate) fn targets(backends: &[Backend]) -> Result<Vec<Target>, BackendError> {
    let mut found: Vec<Target> = Vec::with_capacity(backends.len());
    for backend in backends {
        let target = Target::new(backend)?;
        if !found.iter().any(|one| one.base == target.base) {
            found.push(target);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_scheme_host_and_port() {
        let base = |url: &str| Target::new(&Backend::new(url)).map(|one| one.base.to_string());
        assert_eq!(base("http://a:8000/").unwrap(), "http://a:8000");
        assert_eq!(base("https://a").unwrap(), "https://a:443");
        assert_eq!(base("http://[::1]:8000").unwrap(), "http://[::1]:8000");
        assert_eq!(base("http://a:1/v1/").unwrap(), "http://a:1");
        assert_eq!(base("http://a:1/x/llm/v1").unwrap(), "http://a:1/x/llm");
        assert_eq!(base("http://a:1/v1x/").unwrap(), "http://a:1/v1x");
        let hidden = base("http://u:hush@a").unwrap_err().to_string();
        assert!(
            hidden.contains("...@a") && !hidden.contains("hush"),
            "{hidden}"
        );
        let long = base(&"x".repeat(1 << 20)).unwrap_err().to_string();
        assert!(long.len() < 500, "{long}");
        for wrong in [
            "a:8000",
            "ftp://a",
            "http://a//v1",
            "http://a/%20b/v1",
            "http://u@a",
            "",
            "http://a?b",
        ] {
            let error = base(wrong).unwrap_err().to_string();
            assert!(error.contains("http://10.0.0.1:8000"), "{error}");
        }
    }

    #[test]
    fn a_name_is_the_label_or_a_hash_of_the_address() {
        let name = |backend: &Backend| Target::new(backend).unwrap().name.to_string();
        let plain = Backend::new("http://10.0.0.1:8000/");
        assert_eq!(name(&plain), name(&Backend::new("http://10.0.0.1:8000/v1")));
        assert_ne!(name(&plain), name(&Backend::new("http://10.0.0.2:8000")));
        assert_eq!(hash(b"foobar"), 0xbf9c_f968);
        let labels = |text: &str| [("name".to_owned(), text.to_owned())].into();
        let named = Backend {
            labels: labels("blue"),
            ..plain.clone()
        };
        assert_eq!(name(&named), "blue");
        let empty = Backend {
            labels: labels(""),
            ..plain.clone()
        };
        assert_eq!(name(&empty), name(&plain));
    }

    #[test]
    fn the_same_backend_twice_is_one() {
        let two = [Backend::new("http://a:1"), Backend::new("http://a:1/")];
        assert_eq!(targets(&two).unwrap().len(), 1);
    }

    #[test]
    fn sources_are_written_by_kind() {
        let source: Source =
            serde_json::from_str(r#"{"static": [{"url": "http://a:1"}]}"#).unwrap();
        assert_eq!(source, Source::Static(vec![Backend::new("http://a:1")]));
        let source = serde_json::from_str(r#"{"dns": {"name": "llama", "port": 8000}}"#).unwrap();
        assert!(matches!(source, Source::Dns { port: 8000, .. }));
    }
}
