//! Watches the resources of the Gateway API inference extension in the namespaces of the pools. The
//! Python side interprets them, with the same code as for resources in files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_fleet::Source;
use penstock_kube::{Api, Cluster, Timing, Watched, Watching};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Notify;

use crate::config::PoolConfig;

const STABLE: (&str, &str) = ("inference.networking.k8s.io", "v1");
const EXPERIMENTAL: (&str, &str) = ("inference.networking.x-k8s.io", "v1alpha2");
const LLM_D: (&str, &str) = ("llm-d.ai", "v1alpha2");

const KINDS: [((&str, &str), &str); 7] = [
    (STABLE, "inferencepools"),
    (EXPERIMENTAL, "inferencepools"),
    (EXPERIMENTAL, "inferenceobjectives"),
    (EXPERIMENTAL, "inferencemodelrewrites"),
    (EXPERIMENTAL, "inferencemodels"),
    (LLM_D, "inferenceobjectives"),
    (LLM_D, "inferencemodelrewrites"),
];

/// A resource, without the fields that the gateway ignores, such as its status.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: Value,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    #[serde(default)]
    creation_timestamp: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

/// A Kubernetes cluster and one of its namespaces.
type Scope = (Cluster, String);

/// The resources in all namespaces from which pools take an InferencePool.
#[derive(Debug)]
pub(crate) struct Kinds {
    places: Vec<Scope>,
    watchings: Vec<Watching<Resource>>,
    changed: Arc<Notify>,
}

impl Kinds {
    /// Starts the watches on the current tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn start(pools: &[PoolConfig]) -> Self {
        let (places, changed) = (places(pools), Arc::default());
        let watchings = places.iter().flat_map(|(cluster, namespace)| {
            let api = Api::new(cluster.clone());
            KINDS.map(|((group, version), kind)| {
                let watched = Watched {
                    group,
                    version,
                    kind,
                    namespace: namespace.clone(),
                    labels: String::new(),
                    name: None,
                };
                Watching::start(&api, watched, Timing::default(), &changed)
            })
        });
        Self {
            watchings: watchings.collect(),
            places,
            changed,
        }
    }

    /// Whether the watched namespaces are exactly the namespaces of `pools`.
    pub(crate) fn are_of(&self, pools: &[PoolConfig]) -> bool {
        self.places == places(pools)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Notified at each change of a resource.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Waits up to `patience` until all resources have been listed.
    pub(crate) async fn ready(&self, patience: Duration) {
        let listed = async {
            while self.watchings.iter().any(|one| one.objects().is_none()) {
                self.changed.notified().await;
            }
        };
        let _ = tokio::time::timeout(patience, listed).await;
    }

    /// The resources as a JSON array.
    pub(crate) fn json(&self) -> String {
        let lists: Vec<_> = self
            .watchings
            .iter()
            .filter_map(Watching::objects)
            .collect();
        let all: Vec<&Resource> = lists.iter().flat_map(|list| list.values()).collect();
        serde_json::to_string(&all).unwrap_or_else(|_| "[]".to_owned())
    }
}

fn places(pools: &[PoolConfig]) -> Vec<Scope> {
    let mut places: Vec<Scope> = Vec::new();
    for pool in pools {
        if let Source::Kubernetes(pods) = &pool.source
            && pods.inference_pool.is_some()
        {
            let place = (pods.cluster.clone(), pods.namespace.clone());
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places
}
