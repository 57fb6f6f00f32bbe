//! Filters select the replicas that are candidates for a request.
//!
//! Three filters always apply: the replica's condition, exclusion of replicas that already failed
//! the request, and the request's subset. The filters of a profile are preferences: a filter that
//! would leave no candidate is skipped.

use serde::Deserialize;

use crate::request::draw;
use crate::scorers::Candidate;
use crate::{Condition, Replica, Request};

/// Names of the filters that a profile may have.
pub const FILTERS: [&str; 4] = ["adapter-loaded", "kv-below", "label", "waiting-below"];

/// A filter of a profile.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Filter {
    /// Keeps replicas with fewer waiting requests than `limit`.
    WaitingBelow { limit: f32 },
    /// Keeps replicas whose share of KV blocks in use is below `limit`.
    KvBelow { limit: f32 },
    /// Keeps replicas that have loaded the request's adapter; keeps all if the request has no
    /// adapter.
    AdapterLoaded,
    /// Keeps replicas with this label.
    Label { key: String, value: String },
}

impl Filter {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::AdapterLoaded => "adapter-loaded",
            Self::KvBelow { .. } => "kv-below",
            Self::Label { .. } => "label",
            Self::WaitingBelow { .. } => "waiting-below",
        }
    }

    pub(crate) fn keeps(&self, request: &Request<'_>, candidate: &Candidate<'_>) -> bool {
        let Candidate { replica, load, .. } = candidate;
        match self {
            Self::WaitingBelow { limit } => load.waiting < *limit,
            Self::KvBelow { limit } => load.kv_use < *limit,
            Self::AdapterLoaded => request
                .adapter
                .is_none_or(|asked| replica.adapters.iter().any(|loaded| **loaded == *asked)),
            Self::Label { key, value } => {
                let same = |pair: &(_, _)| pair == &(key.as_str(), value.as_str());
                let mut labels = replica.labels.iter().map(|(k, v)| (k.as_ref(), v.as_ref()));
                labels.any(|pair| same(&pair))
            }
        }
    }
}

/// Whether a replica's condition allows this request. A warming replica accepts its share of the
/// requests, chosen by their tickets.
pub(crate) fn in_condition(request: &Request<'_>, replica: &Replica) -> bool {
    match replica.condition {
        Condition::Ready => true,
        Condition::Warming(share) => draw(request.ticket, u64::from(replica.id.0)) < share,
        Condition::Draining | Condition::Ejected | Condition::Unhealthy => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplicaId;

    fn replica() -> Replica {
        Replica {
            waiting: 4.0,
            kv_use: 0.5,
            adapters: ["sql".into()].into(),
            labels: [("zone".into(), "a".into())].into(),
            ..Replica::new(ReplicaId(1), "a:1")
        }
    }

    fn keeps(filter: &str, request: Request<'_>) -> bool {
        let filter: Filter = serde_json::from_str(filter).unwrap();
        assert!(FILTERS.contains(&filter.name()));
        let replica = replica();
        filter.keeps(&request, &Candidate::new(&replica, 0, 0.0))
    }

    #[test]
    fn limits_are_exclusive() {
        let plain = Request::default();
        assert!(keeps(r#"{"name": "waiting-below", "limit": 5}"#, plain));
        assert!(!keeps(r#"{"name": "waiting-below", "limit": 4}"#, plain));
        assert!(keeps(r#"{"name": "kv-below", "limit": 0.6}"#, plain));
        assert!(!keeps(r#"{"name": "kv-below", "limit": 0.5}"#, plain));
    }

    #[test]
    fn adapters_and_labels_are_compared_whole() {
        let adapter = r#"{"name": "adapter-loaded"}"#;
        let asks = |name| Request {
            adapter: name,
            ..Request::default()
        };
        assert!(keeps(adapter, asks(None)));
        assert!(keeps(adapter, asks(Some("sql"))));
        assert!(!keeps(adapter, asks(Some("sq"))));
        let label = |value| format!(r#"{{"name": "label", "key": "zone", "value": "{value}"}}"#);
        assert!(keeps(&label("a"), Request::default()));
        assert!(!keeps(&label("b"), Request::default()));
    }

    #[test]
    fn a_warming_replica_takes_its_share() {
        let warming = Replica {
            condition: Condition::Warming(0.25),
            ..replica()
        };
        let taken = (0..1000).filter(|ticket| {
            let request = Request {
                ticket: *ticket,
                ..Request::default()
            };
            in_condition(&request, &warming)
        });
        assert!((200..300).contains(&taken.count()));
    }
}
