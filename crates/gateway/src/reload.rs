//! Another configuration for a gateway that runs: pools, profiles, rules and objectives.
//!
//! All of it is checked before any of it counts, so that a wrong file changes nothing. A request
//! keeps the pool that it was sent to. Of a pool that stays, replicas that stay keep what is known
//! of them: cached prefixes, pace, circuit breaker.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use penstock_fleet::{FleetError, NextSource};
use penstock_http::{Level, Reloaded, log};
use penstock_routing::Profile;
use tokio::runtime::Handle;

use crate::config::{Config, PoolConfig};
use crate::error::StartError;
use crate::flow::FlowSettings;
use crate::gateway::Gateway;
use crate::hedge::HedgeSettings;
use crate::mirror::MirrorSettings;
use crate::pool::{Pool, profile};

/// Members that a running gateway takes over.
const LIVE: [&str; 4] = ["pools", "models", "objectives", "watched"];
/// For the first look at the replicas of new pools; until then the old rules count.
const READY_PATIENCE: Duration = Duration::from_secs(3);

/// Makes the configuration anew, as JSON; or says what is wrong with its files.
pub type Reread = Box<dyn Fn() -> Result<String, String> + Send + Sync>;

/// What becomes of a pool.
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
    /// Takes over what can change while it runs, and logs the names of the rest.
    ///
    /// # Errors
    /// [`StartError`]: the old configuration stays in force.
    pub async fn reload(&self, config: Config) -> Result<(), StartError> {
        let next = self.next_pools(&config.pools)?;
        for one in &next {
            if let Next::New(pool) = one {
                pool.fleet.ready(READY_PATIENCE).await;
            }
        }
        for name in self.fixed(&config) {
            log(
                Level::Warning,
                format!("{name} has changed: that counts from the next start"),
            );
        }
        let pools = next.into_iter().map(Next::apply).collect();
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
                    self.client.clone(),
                )?))),
            }
        });
        next.collect()
    }

    /// Names of what differs from the start and cannot change.
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

/// Reads the configuration again whenever one of its files changes.
pub(crate) struct Reloader {
    gateway: Arc<Gateway>,
    reread: Reread,
    runtime: Handle,
    watch: Mutex<Watch>,
}

#[derive(Default)]
struct Watch {
    files: Vec<PathBuf>,
    /// Held for its thread.
    _thread: Option<Arc<Reloaded<()>>>,
}

impl Reloader {
    /// On the current tokio runtime, until it is dropped.
    ///
    /// # Errors
    /// The files have become wrong since they were read.
    pub(crate) fn start(gateway: Arc<Gateway>, reread: Reread) -> Result<Arc<Self>, String> {
        let files = gateway.config.watched.clone();
        let reloader = Arc::new(Self {
            gateway,
            reread,
            runtime: Handle::current(),
            watch: Mutex::default(),
        });
        reloader.watch(files)?;
        Ok(reloader)
    }

    /// Looks at these files from now on.
    fn watch(self: &Arc<Self>, files: Vec<PathBuf>) -> Result<(), String> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if watch.files == files {
            return Ok(());
        }
        let weak: Weak<Self> = Arc::downgrade(self);
        let first = std::sync::atomic::AtomicBool::new(true);
        let read = move || match weak.upgrade() {
            // What was read before the first look at the files' times is what counts.
            _ if first.swap(false, std::sync::atomic::Ordering::Relaxed) => Ok(()),
            Some(reloader) => reloader.reload(),
            None => Ok(()),
        };
        watch._thread = Some(Reloaded::start(files.clone(), read)?);
        watch.files = files;
        Ok(())
    }

    fn reload(self: &Arc<Self>) -> Result<(), String> {
        let config = Config::from_json(&(self.reread)()?)?;
        let files = config.watched.clone();
        let done = self.runtime.block_on(self.gateway.reload(config));
        done.map_err(|error| error.to_string())?;
        self.watch(files)
    }
}
