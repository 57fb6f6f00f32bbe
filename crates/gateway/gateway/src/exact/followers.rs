//! Subscriptions to KV events: one task for each replica of a pool, which records the replica's
//! blocks in the block index.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use penstock_fleet::Fleet;
use penstock_kv_events::{Batch, Endpoint, Event, Following, Stored, Update, follow};
use penstock_prefix::Run;
use penstock_routing::{Replica, ReplicaId};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::warn;

use super::known::{Known, root};
use crate::config::KvEvents;

/// Interval at which the subscriptions are compared with the fleet's list of replicas.
const TICK: Duration = Duration::from_millis(250);
const MOST_ADAPTERS: usize = 1024;

/// State of the subscription to one replica.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) address: Arc<str>,
    /// Whether the subscription is connected.
    live: AtomicBool,
    /// Whether all events have been received since the replica's cache was last empty.
    complete: AtomicBool,
    pub(super) batches: AtomicU64,
    pub(super) gaps: AtomicU64,
    pub(super) resets: AtomicU64,
}

impl Follower {
    pub(super) fn live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }
}

type List = BTreeMap<ReplicaId, Arc<Follower>>;

/// The subscriptions of a pool. A drop ends their tasks.
#[derive(Debug)]
pub(super) struct Followers {
    shared: Arc<FollowedPrefixes>,
    task: AbortHandle,
}

#[derive(Debug)]
struct FollowedPrefixes {
    list: ArcSwap<List>,
    /// Names of adapters that occurred in events.
    adapters: Mutex<HashSet<String>>,
    known: Arc<Known>,
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Followers {
    pub(super) fn start(template: Template, fleet: Fleet, known: Arc<Known>) -> Self {
        let shared = Arc::new(FollowedPrefixes {
            list: ArcSwap::default(),
            adapters: Mutex::default(),
            known,
        });
        let task = tokio::spawn(supervise(template, fleet, shared.clone())).abort_handle();
        Self { shared, task }
    }

    pub(super) fn now(&self) -> Arc<List> {
        self.shared.list.load_full()
    }

    pub(super) fn any_live(&self) -> bool {
        self.shared.list.load().values().any(|one| one.live())
    }

    pub(super) fn has_adapter(&self, name: &str) -> bool {
        self.shared.adapters().contains(name)
    }
}

impl FollowedPrefixes {
    fn adapters(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that is aborted on drop.
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts and stops subscriptions as replicas are added, restarted and removed.
async fn supervise(template: Template, fleet: Fleet, shared: Arc<FollowedPrefixes>) {
    let mut running: BTreeMap<ReplicaId, (u32, Arc<Follower>, Task)> = BTreeMap::new();
    loop {
        let view = fleet.view();
        let restarts = |place| view.restarts(place);
        let now: BTreeMap<ReplicaId, (u32, &Replica)> = (view.replicas.iter().enumerate())
            .map(|(place, one)| (one.id, (restarts(place), one)))
            .collect();
        let before: Vec<ReplicaId> = running.keys().copied().collect();
        running.retain(|id, (restarts, ..)| now.get(id).is_some_and(|one| one.0 == *restarts));
        for id in before.iter().filter(|id| !running.contains_key(id)) {
            shared.known.index().clear(id.0);
        }
        let mut changed = before.len() != running.len();
        for (id, (restarts, replica)) in now {
            if running.contains_key(&id) {
                continue;
            }
            if let Some((follower, task)) = start(&template, replica, &shared) {
                running.insert(id, (restarts, follower, task));
                changed = true;
            }
        }
        if changed {
            let list = running.iter().map(|(id, (_, one, _))| (*id, one.clone()));
            shared.list.store(Arc::new(list.collect()));
        }
        sleep(TICK).await;
    }
}

fn start(
    template: &Template,
    replica: &Replica,
    shared: &Arc<FollowedPrefixes>,
) -> Option<(Arc<Follower>, Task)> {
    let from = template.of(replica)?;
    let follower = Arc::new(Follower {
        address: replica.address.clone(),
        live: AtomicBool::new(false),
        complete: AtomicBool::new(false),
        batches: AtomicU64::new(0),
        gaps: AtomicU64::new(0),
        resets: AtomicU64::new(0),
    });
    let (own, shared, engine) = (follower.clone(), shared.clone(), replica.id.0);
    let following = async move {
        follow(&from, |update| own.saw(update, &shared, engine)).await;
    };
    Some((follower, Task(tokio::spawn(following).abort_handle())))
}

impl Follower {
    fn saw(&self, update: Update, shared: &FollowedPrefixes, engine: u32) {
        match update {
            Update::Connected => self.live.store(true, Ordering::Release),
            Update::Reset => self.forget(shared, engine),
            Update::Gap => drop(self.gaps.fetch_add(1, Ordering::Relaxed)),
            Update::NoReplay(reason) => self.say(&format!("no past KV events: {reason}")),
            Update::Lost(reason) => {
                if self.live.swap(false, Ordering::AcqRel) {
                    self.say(&format!("its KV events end: {reason}"));
                }
                self.forget(shared, engine);
            }
            Update::Batch(number, batch) => {
                self.batches.fetch_add(1, Ordering::Relaxed);
                if number == 0 || batch.events.contains(&Event::Cleared) {
                    self.complete.store(true, Ordering::Release);
                }
                apply(batch, shared, engine);
            }
        }
    }

    fn forget(&self, shared: &FollowedPrefixes, engine: u32) {
        self.complete.store(false, Ordering::Release);
        self.resets.fetch_add(1, Ordering::Relaxed);
        shared.known.index().clear(engine);
    }

    fn say(&self, what: &str) {
        warn!("{}: {what}", self.address);
    }
}

fn apply(batch: Batch, shared: &FollowedPrefixes, engine: u32) {
    let mut index = shared.known.index();
    for event in batch.events {
        match event {
            Event::Cleared => index.clear(engine),
            Event::Removed { hashes, medium } => {
                let names: Vec<u128> = hashes.iter().map(|hash| hash.0).collect();
                index.removed(engine, &names, medium as usize);
            }
            Event::Stored(stored) if stored.windowed => {}
            Event::Stored(stored) => {
                let names: Vec<u128> = stored.hashes.iter().map(|hash| hash.0).collect();
                index.stored(engine, &run(&stored, &names));
                note_adapter(stored.adapter, shared);
            }
        }
    }
}

fn run<'a>(stored: &'a Stored, names: &'a [u128]) -> Run<'a> {
    Run {
        names,
        parent: stored.parent.map(|parent| parent.0),
        tokens: &stored.tokens,
        block_size: stored.block_size,
        root: root(stored.adapter.as_deref()),
        extra: &stored.extra,
        tier: stored.medium as usize,
    }
}

fn note_adapter(adapter: Option<String>, shared: &FollowedPrefixes) {
    let Some(adapter) = adapter else {
        return;
    };
    let mut adapters = shared.adapters();
    if adapters.len() < MOST_ADAPTERS {
        adapters.insert(adapter);
    }
}

/// Templates of a replica's endpoints, to be filled with its host, port and labels.
#[derive(Debug, Clone)]
pub(super) struct Template {
    events: String,
    replay: Option<String>,
    topic: String,
}

impl Template {
    /// # Errors
    /// An endpoint is invalid, regardless of the values of the labels.
    pub(super) fn new(settings: &KvEvents) -> Result<Self, String> {
        let template = Self {
            events: settings.endpoint.clone(),
            replay: settings.replay_endpoint.clone(),
            topic: settings.topic.clone(),
        };
        for text in [Some(&template.events), template.replay.as_ref()] {
            let Some(text) = text else { continue };
            let filled = filled(text, |_| Some("1".to_owned()));
            let parsed = filled.map(|filled| Endpoint::parse(&filled));
            if !matches!(parsed, Some(Ok(_))) {
                return Err(format!(
                    "kv_events: {text:?} is not like tcp://{{host}}:5557"
                ));
            }
        }
        Ok(template)
    }

    /// The endpoints of `replica`; `None` if it lacks a label that a template names.
    fn of(&self, replica: &Replica) -> Option<Following> {
        let place = replica.address.split('/').next()?;
        let (host, port) = place.rsplit_once(':')?;
        let value = |name: &str| match name {
            "host" => Some(host.to_owned()),
            "port" => Some(port.to_owned()),
            _ => {
                let mut labels = replica.labels.iter();
                labels
                    .find(|(key, _)| **key == *name)
                    .map(|(_, value)| value.to_string())
            }
        };
        let endpoint = |text: &str| Endpoint::parse(&filled(text, value)?).ok();
        let replay = self.replay.as_deref();
        Some(Following {
            events: endpoint(&self.events)?,
            replay: replay.and_then(endpoint),
            topic: self.topic.clone(),
        })
    }
}

/// Replaces each `{name}` in the text by its value; `None` if a value is missing.
fn filled(text: &str, value: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) = after.split_once('}')?;
        out = out + before + &value(name)?;
        rest = behind;
    }
    Some(out + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoint: &str) -> KvEvents {
        KvEvents {
            endpoint: endpoint.to_owned(),
            replay_endpoint: Some("tcp://{host}:{replay}".to_owned()),
            topic: String::new(),
        }
    }

    #[test]
    fn endpoints_are_made_of_hosts_and_labels() {
        let template = Template::new(&settings("tcp://{host}:5557")).unwrap();
        let mut replica = Replica::new(ReplicaId(0), "10.0.0.1:8000");
        let from = template.of(&replica).unwrap();
        assert_eq!(from.events, Endpoint::parse("tcp://10.0.0.1:5557").unwrap());
        assert_eq!(from.replay, None, "it has no such label");
        replica.labels = [(Arc::from("replay"), Arc::from("7"))].into();
        let from = template.of(&replica).unwrap();
        assert_eq!(
            from.replay,
            Some(Endpoint::parse("tcp://10.0.0.1:7").unwrap())
        );
        let v6 = Replica::new(ReplicaId(0), "[::1]:8000");
        assert_eq!(template.of(&v6).unwrap().events.host, "::1");
        for wrong in ["5557", "tcp://{host}", "tcp://{host:5557", "ipc://{host}:1"] {
            assert!(Template::new(&settings(wrong)).is_err(), "{wrong}");
        }
    }
}
