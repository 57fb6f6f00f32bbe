//! Selector and ports of an InferencePool, read from both versions of its API.

use serde::Deserialize;
use serde_json::{Map, Value};

/// API group and version. If both have a pool of the same name, the first one wins.
pub(super) const VERSIONS: [(&str, &str); 2] = [
    ("inference.networking.k8s.io", "v1"),
    ("inference.networking.x-k8s.io", "v1alpha2"),
];

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Written")]
pub(super) struct InferencePool {
    /// A label selector such as `app=llama,tier=gpu`; empty: no pods.
    pub(super) selector: String,
    pub(super) ports: Vec<u16>,
}

#[derive(Deserialize)]
struct Written {
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    /// `{matchLabels: {app: llama}}` in v1, `{app: llama}` in v1alpha2.
    selector: Map<String, Value>,
    #[serde(default)]
    target_ports: Vec<Port>,
    /// In v1alpha2 only.
    target_port_number: Option<u16>,
}

#[derive(Deserialize)]
struct Port {
    number: u16,
}

impl From<Written> for InferencePool {
    fn from(written: Written) -> Self {
        let spec = written.spec;
        let old = spec.target_port_number.is_some();
        let labels = match spec.selector.get("matchLabels") {
            Some(labels) if !old => labels.as_object(),
            _ => Some(&spec.selector),
        };
        let equal = |(key, value): (&String, &Value)| Some(format!("{key}={}", value.as_str()?));
        let parts: Vec<String> = labels.into_iter().flatten().filter_map(equal).collect();
        let ports = spec.target_ports.iter().map(|port| port.number);
        Self {
            selector: parts.join(","),
            ports: ports.chain(spec.target_port_number).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: &str) -> InferencePool {
        serde_json::from_str(&format!(r#"{{"metadata": {{}}, "spec": {spec}}}"#)).unwrap()
    }

    #[test]
    fn both_versions_are_read() {
        let pool = read(
            r#"{"selector": {"matchLabels": {"app": "llama", "tier": ""}},
                "targetPorts": [{"number": 8000}, {"number": 8001}]}"#,
        );
        assert_eq!(
            (pool.selector.as_str(), pool.ports),
            ("app=llama,tier=", vec![8000, 8001])
        );
        let pool = read(r#"{"selector": {"app": "llama"}, "targetPortNumber": 8000}"#);
        assert_eq!(
            (pool.selector.as_str(), pool.ports),
            ("app=llama", vec![8000])
        );
    }

    #[test]
    fn a_pool_without_labels_selects_nothing() {
        let pool = read(r#"{"selector": {"matchLabels": {}}, "targetPorts": []}"#);
        assert_eq!((pool.selector.as_str(), pool.ports.len()), ("", 0));
    }
}
