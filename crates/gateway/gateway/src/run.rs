//! Life cycle of the gateway's process.

use std::time::Duration;

use penstock_http::{ServiceManager, Signals, run_process, wind_down};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::error::StartError;
use crate::kinds::Kinds;
use crate::reload::{Reloader, Reread};
use crate::serving::Serving;

/// Maximum number of threads for blocking work, such as name resolution and file reads.
const BLOCKING_THREADS: usize = 16;
/// Time-out at start-up for the first health checks of the replicas.
const READY_PATIENCE: Duration = Duration::from_secs(3);

/// Serves until SIGTERM, SIGINT or SIGHUP, then drains. Returns the exit code: 0 after a drain, 1
/// if a second signal cut it short. With `reread`, the configuration is reloaded when its files or
/// the cluster's resources change.
///
/// # Errors
/// [`StartError`]
pub fn run(config_json: &str, reread: Option<Reread>) -> Result<i32, StartError> {
    let config = Config::from_json(config_json).map_err(StartError::Config)?;
    let threads = (config.worker_threads, BLOCKING_THREADS);
    run_process(config.log, "gateway", threads, live(config, reread))?
}

async fn live(config: Config, reread: Option<Reread>) -> Result<i32, StartError> {
    let mut signals = Signals::install()?;
    let manager = ServiceManager::new(config.notify_socket.clone());
    let kinds = Kinds::start(&config.pools);
    let config = match &reread {
        Some(reread) => with_kinds(config, &kinds, reread).await,
        None => config,
    };
    let serving = Serving::start(config).await?;
    serving.gateway.warn(&serving.gateway.config.warnings);
    let reloader = reread.map(|reread| Reloader::start(serving.gateway.clone(), reread, kinds));
    let _reloader = reloader.transpose().map_err(StartError::Config)?;
    let found = tokio::select! {
        found = serving.gateway.ready(READY_PATIENCE) => found,
        () = signals.next() => return Ok(0),
    };
    if !found {
        warn!("no replica takes requests yet");
    }
    info!("ready, listening on {}", serving.url);
    if let Some(url) = &serving.picker_url {
        info!("endpoint picker, listening on {url}");
    }
    manager.ready(&format!("listening on {}", serving.url));
    signals.next().await;
    manager.stopping();
    let open = serving.gateway.open_requests();
    Ok(wind_down(open, &mut signals, async |hurry| serving.drain(hurry).await).await)
}

/// Adds the rules from the cluster's resources to the configuration, so that they apply to the
/// first request already.
async fn with_kinds(config: Config, kinds: &Kinds, reread: &Reread) -> Config {
    if kinds.is_empty() {
        return config;
    }
    kinds.ready(READY_PATIENCE).await;
    match reread(&kinds.json()).and_then(|text| Config::from_json(&text)) {
        Ok(config) => config,
        Err(error) => {
            error!("error: {error}; the kinds of the cluster do not count yet");
            config
        }
    }
}
