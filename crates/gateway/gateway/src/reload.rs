//! Reload of the configuration of a running gateway: pools, profiles, rules and objectives.
//!
//! A reload is atomic: the whole configuration is checked before any part is applied, so an invalid
//! file has no effect. A request stays in its pool. Replicas that remain in a pool keep their
//! state: cached prefixes, throughput, circuit breaker.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use penstock_fleet::{FleetError, NextSource};
use penstock_http::Reloaded;
use penstock_routing::Profile;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tracing::{error, warn};

use crate::config::{Config, PoolConfig};
use crate::error::StartError;
use crate::flow::FlowSettings;
use crate::gateway::Gateway;
use crate::hedge::HedgeSettings;
use crate::kinds::Kinds;
use crate::mirror::MirrorSettings;
use crate::pool::{Pool, profile};

/// Members of the configuration that a reload can change.
const LIVE: [&str; 5] = ["pools", "models", "objectives", "watched", "warnings"];
/// Time-out for the first health checks of new pools. Until the checks are done, the old rules stay
/// in force.
const READY_PATIENCE: Duration = Duration::from_secs(3);

/// Delay from a change of the cluster's resources to the reload. Groups changes that come together.
const GROUPED: Duration = Duration::from_millis(100);

/// Regenerates the configuration as JSON from its files and from the cluster's resources (the
/// argument, a JSON array). The error describes the invalid file.
pub type Reread = Box<dyn Fn(&str) -> Result<String, String> + Send + Sync>;

/// A pool after the reload.
enum Next {
    New(Arc<Pool>),
    Kept {
        pool: Arc<Pool>,
        flow: FlowSettings,
        hedge: Option<HedgeSettings>,
        mirror: Option<Arc<MirrorSettings>>,
        profile: Profile,
        source: Option<NextSource>,
    },
}

impl Gateway {
    /// Applies the members that can change at run time, and warns about changes of other members.
    ///
    /// # Errors
    /// [`StartError`]: the new configuration is invalid, and the old one stays in force.
    pub async fn reload(&self, config: Config) -> Result<(), StartError> {
        let next = self.next_pools(&config.pools)?;
        for one in &next {
            if let Next::New(pool) = one {
                pool.fleet.ready(READY_PATIENCE).await;
            }
        }
        for name in self.fixed(&config) {
            warn!("{name} has changed: that counts from the next start");
        }
        let pools = next.into_iter().map(Next::apply).collect();
        self.warn(&config.warnings);
        self.models.replace(&config.models, pools);
        self.classes.replace(&config.objectives);
        *self.pools.lock().unwrap_or_else(PoisonError::into_inner) = config.pools;
        Ok(())
    }

    fn next_pools(&self, configs: &[PoolConfig]) -> Result<Vec<Next>, StartError> {
        let old = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let pools = self.models.pools();
        let next = configs.iter().map(|config| {
            let pool = pools.iter().find(|pool| *pool.name == *config.name);
            let before = old.iter().find(|one| one.name == config.name);
            match (pool, before) {
                (Some(pool), Some(before)) => Next::kept(pool, before, config),
                _ => Ok(Next::New(Arc::new(Pool::start(
                    config,
                    self.poller.clone(),
                )?))),
            }
        });
        next.collect()
    }

    /// Names of the changed members that only a restart applies.
    fn fixed(&self, config: &Config) -> Vec<String> {
        let (old, new) = (&self.config.given, &config.given);
        let all = old
            .keys()
            .chain(new.keys().filter(|&key| !old.contains_key(key)));
        let changed =
            all.filter(|&key| !LIVE.contains(&key.as_str()) && old.get(key) != new.get(key));
        let mut names: Vec<String> = changed.cloned().collect();
        let before = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        for pool in &config.pools {
            let same = before.iter().find(|one| one.name == pool.name);
            if same.is_some_and(|same| same.fleet != pool.fleet) {
                names.push(format!("fleet of pool {:?}", pool.name));
            }
            let exact = |one: &PoolConfig| (one.tokenizer.clone(), one.kv_events.clone());
            if same.is_some_and(|same| exact(same) != exact(pool)) {
                names.push(format!("tokenizer or kv_events of pool {:?}", pool.name));
            }
        }
        names
    }
}

impl Next {
    fn kept(
        pool: &Arc<Pool>,
        before: &PoolConfig,
        config: &PoolConfig,
    ) -> Result<Self, StartError> {
        let source = match before.source == config.source {
            true => None,
            false => Some(pool.fleet.next_source(config.source.clone())),
        };
        let source = source.transpose().map_err(|error| StartError::Fleet {
            pool: config.name.clone(),
            source: FleetError::Source(error),
        })?;
        Ok(Self::Kept {
            pool: pool.clone(),
            flow: config.flow,
            hedge: config.hedge,
            mirror: config.mirror.clone().map(Arc::new),
            profile: profile(config)?,
            source,
        })
    }

    fn apply(self) -> Arc<Pool> {
        match self {
            Self::New(pool) => pool,
            Self::Kept {
                pool,
                flow,
                hedge,
                mirror,
                profile,
                source,
            } => {
                pool.set_profile(profile);
                pool.flow.set(flow);
                pool.hedging.set(hedge);
                pool.mirror.set(mirror);
                if let Some(source) = source {
                    pool.fleet.follow(source);
                }
                pool
            }
        }
    }
}

/// Reloads the configuration when one of its files or the cluster's resources change.
pub(crate) struct Reloader {
    gateway: Arc<Gateway>,
    reread: Reread,
    runtime: Handle,
    watch: Mutex<Watch>,
    /// Locked during a reload.
    kinds: Mutex<Followed>,
}

#[derive(Default)]
struct Watch {
    files: Vec<PathBuf>,
    /// Handle of the thread that watches the files; the thread lives as long as the handle.
    _thread: Option<Arc<Reloaded<()>>>,
}

/// The watched resources, and the task that waits for their changes.
struct Followed {
    kinds: Kinds,
    task: Option<AbortHandle>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Reloader {
    /// Starts the reloader on the current tokio runtime; a drop stops it. The gateway's rules must
    /// already include the rules from `kinds`.
    ///
    /// # Errors
    /// A file has become invalid since it was read.
    pub(crate) fn start(
        gateway: Arc<Gateway>,
        reread: Reread,
        kinds: Kinds,
    ) -> Result<Arc<Self>, String> {
        let files = gateway.config.watched.clone();
        let reloader = Arc::new(Self {
            gateway,
            reread,
            runtime: Handle::current(),
            watch: Mutex::default(),
            kinds: Mutex::new(Followed { kinds, task: None }),
        });
        reloader.watch(files)?;
        reloader.follow(&mut reloader.followed());
        Ok(reloader)
    }

    fn followed(&self) -> MutexGuard<'_, Followed> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the watched files.
    fn watch(self: &Arc<Self>, files: Vec<PathBuf>) -> Result<(), String> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.files == files {
            return Ok(());
        }
        let weak: Weak<Self> = Arc::downgrade(self);
        let first = std::sync::atomic::AtomicBool::new(true);
        let read = move || match weak.upgrade() {
            // The first call happens when the watch starts, and the configuration has just been
            // read then.
            _ if first.swap(false, std::sync::atomic::Ordering::Relaxed) => Ok(()),
            Some(reloader) => reloader.reload(),
            None => Ok(()),
        };
        watch._thread = Some(Reloaded::start(files.clone(), read)?);
        watch.files = files;
        Ok(())
    }

    /// Starts the task that waits for changes of the cluster's resources.
    fn follow(self: &Arc<Self>, followed: &mut Followed) {
        let (weak, changed) = (Arc::downgrade(self), followed.kinds.changed());
        let task = self.runtime.spawn(async move {
            loop {
                changed.notified().await;
                tokio::time::sleep(GROUPED).await;
                let Some(reloader) = weak.upgrade() else {
                    return;
                };
                let reloaded = tokio::task::spawn_blocking(move || reloader.reload()).await;
                if let Ok(Err(error)) = reloaded {
                    let stays = "what was known before stays in force";
                    error!("error: {error}; {stays}");
                }
            }
        });
        if let Some(before) = followed.task.replace(task.abort_handle()) {
            before.abort();
        }
    }

    fn reload(self: &Arc<Self>) -> Result<(), String> {
        let mut followed = self.followed();
        let made = |kinds: &Kinds| Config::from_json(&(self.reread)(&kinds.json())?);
        let mut config = made(&followed.kinds)?;
        if !followed.kinds.are_of(&config.pools) {
            followed.kinds = self.runtime.block_on(async {
                let kinds = Kinds::start(&config.pools);
                kinds.ready(READY_PATIENCE).await;
                kinds
            });
            self.follow(&mut followed);
            config = made(&followed.kinds)?;
        }
        let files = config.watched.clone();
        let done = self.runtime.block_on(self.gateway.reload(config));
        done.map_err(|error| error.to_string())?;
        drop(followed);
        self.watch(files)
    }
}
