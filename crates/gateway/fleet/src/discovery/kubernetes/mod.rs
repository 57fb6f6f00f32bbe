//! Backends from the pods of a Kubernetes namespace. A pod must be ready, and be selected by an
//! InferencePool, a label selector, or both. Each target port of a pod is a backend.

mod inference_pool;
mod pod;

use std::sync::Arc;

use penstock_kube::{Api, Objects, Timing, Watched, Watching};
use tokio::sync::Notify;
use tracing::warn;

use self::inference_pool::InferencePool;
use self::pod::Pod;
use super::Found;
use crate::backend::{Backend, Pods, Target, targets};

/// Label selector of the pods, and the ports on which each of them is a backend.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Selection {
    /// `None`: selects no pods.
    selector: Option<String>,
    ports: Vec<u16>,
}

struct Follower {
    pods: Pods,
    api: Api,
    timing: Timing,
    changed: Arc<Notify>,
    /// `None` until the InferencePool has been read.
    selection: Option<Selection>,
    selected: Option<Watching<Pod>>,
    /// Whether a warning about the missing InferencePool has been logged.
    missing: bool,
}

/// Follows the pods until all receivers of the list are dropped.
pub(crate) async fn follow(pods: Pods, timing: Timing, found: Found) {
    let follower = Follower {
        api: Api::new(pods.cluster.clone()),
        pods,
        timing,
        changed: Arc::default(),
        selection: None,
        selected: None,
        missing: false,
    };
    tokio::select! {
        () = found.closed() => {}
        () = follower.run(&found) => {}
    }
}

impl Follower {
    async fn run(mut self, found: &Found) {
        let name = self.pods.inference_pool.clone();
        let pools = name.as_ref().map(|name| {
            let watched = |(group, version)| Watched {
                group,
                version,
                kind: "inferencepools",
                namespace: self.pods.namespace.clone(),
                labels: String::new(),
                name: Some(name.clone()),
            };
            inference_pool::VERSIONS.map(|version| self.watch(watched(version)))
        });
        loop {
            let selection = match (&name, &pools) {
                (Some(name), Some(pools)) => self.selection_of(name, pools),
                _ => Some(self.narrowed(None)),
            };
            if let Some(selection) = selection {
                self.select(selection);
            }
            if let Some(backends) = self.backends() {
                found.send_if_modified(|list| {
                    let changed = list.as_ref() != Some(&backends);
                    *list = Some(backends);
                    changed
                });
            }
            self.changed.notified().await;
        }
    }

    /// Selection of the InferencePool, of the newer API version if both exist; `None` while
    /// unknown.
    fn selection_of(&mut self, name: &str, pools: &[Watching<InferencePool>]) -> Option<Selection> {
        let lists: Vec<_> = pools.iter().map(Watching::objects).collect();
        let here = lists.iter().flatten().find_map(|list| list.get(name));
        let missing = here.is_none() && lists.iter().all(Option::is_some);
        if missing && !std::mem::replace(&mut self.missing, true) {
            let namespace = &self.pods.namespace;
            warn!("there is no InferencePool {name} in namespace {namespace}");
        }
        if here.is_some() {
            self.missing = false;
        }
        match here {
            Some(pool) => Some(self.narrowed(Some(pool))),
            None => missing.then(Selection::default),
        }
    }

    /// Selection of an InferencePool, narrowed by the configured selector and ports.
    fn narrowed(&self, pool: Option<&InferencePool>) -> Selection {
        let own = self.pods.selector.clone();
        let parts: Vec<String> = pool
            .map(|pool| pool.selector.clone())
            .into_iter()
            .chain(own)
            .filter(|part| !part.is_empty())
            .collect();
        let ports = match (self.pods.ports.is_empty(), pool) {
            (true, Some(pool)) => pool.ports.clone(),
            _ => self.pods.ports.clone(),
        };
        Selection {
            // An empty selector selects no pods, as in a Service. To the Kubernetes API it would
            // mean every pod of the namespace.
            selector: (!parts.is_empty()).then(|| parts.join(",")),
            ports,
        }
    }

    /// Starts another watch of pods if the selector changed. The known pods stay in use until the
    /// new watch has its first list.
    fn select(&mut self, selection: Selection) {
        let before = self
            .selection
            .as_ref()
            .and_then(|one| one.selector.as_ref());
        if before != selection.selector.as_ref() {
            self.selected = selection.selector.clone().map(|labels| {
                self.watch(Watched {
                    group: "",
                    version: "v1",
                    kind: "pods",
                    namespace: self.pods.namespace.clone(),
                    labels,
                    name: None,
                })
            });
        }
        self.selection = Some(selection);
    }

    fn watch<T>(&self, watched: Watched) -> Watching<T>
    where
        T: serde::de::DeserializeOwned + Clone + PartialEq + Send + Sync + 'static,
    {
        Watching::start(&self.api, watched, self.timing, &self.changed)
    }

    /// The current backends; `None` while they are unknown.
    fn backends(&self) -> Option<Vec<Target>> {
        let selection = self.selection.as_ref()?;
        let pods = match &self.selected {
            Some(pods) => pods.objects()?,
            None => Arc::default(),
        };
        Some(backends_of(&pods, &selection.ports))
    }
}

/// One backend for each port of each ready pod.
fn backends_of(pods: &Objects<Pod>, ports: &[u16]) -> Vec<Target> {
    let each = |pod: &Pod| {
        let backend = |address, &port| Backend {
            url: format!("http://{}", std::net::SocketAddr::new(address, port)),
            labels: pod.labels.clone(),
        };
        let at = |address| ports.iter().map(move |port| backend(address, port));
        pod.ready_at.into_iter().flat_map(at).collect::<Vec<_>>()
    };
    let backends: Vec<Backend> = pods.values().flat_map(each).collect();
    targets(&backends).unwrap_or_default()
}
