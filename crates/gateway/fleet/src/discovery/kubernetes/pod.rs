//! The fields of a pod that the gateway uses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Written")]
pub(super) struct Pod {
    /// Address of the pod; `None` while it is not ready or is being deleted.
    pub(super) ready_at: Option<IpAddr>,
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Written {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    labels: BTreeMap<String, String>,
    deletion_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
struct Status {
    #[serde(rename = "podIP")]
    address: Option<String>,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl From<Written> for Pod {
    fn from(written: Written) -> Self {
        let is_ready = |one: &Condition| one.kind == "Ready" && one.status == "True";
        let stays = written.metadata.deletion_timestamp.is_none();
        let ready = stays && written.status.conditions.iter().any(is_ready);
        let address = written.status.address.filter(|_| ready);
        Self {
            ready_at: address.and_then(|address| address.parse().ok()),
            labels: written.metadata.labels,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready_at(metadata: &str, status: &str) -> Option<String> {
        let text = format!(r#"{{"metadata": {{{metadata}}}, "status": {{{status}}}}}"#);
        let pod: Pod = serde_json::from_str(&text).unwrap();
        pod.ready_at.map(|address| address.to_string())
    }

    const READY: &str = r#""podIP": "10.0.0.7", "conditions": [{"type": "Initialized",
        "status": "True"}, {"type": "Ready", "status": "True"}]"#;

    #[test]
    fn only_a_ready_pod_that_stays_has_an_address() {
        assert_eq!(ready_at("", READY).as_deref(), Some("10.0.0.7"));
        assert_eq!(
            ready_at("", &READY.replace("10.0.0.7", "fd00::7")).as_deref(),
            Some("fd00::7")
        );
        assert_eq!(
            ready_at(r#""deletionTimestamp": "2026-11-22T10:00:00Z""#, READY),
            None
        );
        assert_eq!(
            ready_at("", &READY.replace("\"True\"}]", "\"False\"}]")),
            None
        );
        assert_eq!(ready_at("", &READY.replace("10.0.0.7", "")), None);
        assert_eq!(ready_at("", ""), None);
        let without: Pod = serde_json::from_str(r#"{"metadata": {}}"#).unwrap();
        assert_eq!(without.ready_at, None);
    }
}
