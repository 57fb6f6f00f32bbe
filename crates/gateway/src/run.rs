//! The life of the process.

use std::time::{Duration, Instant};

use penstock_http::{Level, ServiceManager, Signals, configure_log, flush_log, log};
use tokio::runtime::Builder;

use crate::config::Config;
use crate::gateway::StartError;
use crate::serving::Serving;

/// For the first look at the replicas.
const READY_PATIENCE: Duration = Duration::from_secs(3);
/// Signals within this time of the first are the same wish.
const ONE_SIGNAL: Duration = Duration::from_millis(200);
/// How long the last lines of the log may take to be written.
const LOG_PATIENCE: Duration = Duration::from_secs(1);

/// Serves until SIGTERM, SIGINT or SIGHUP, drains, and returns the exit code: 0 after a drain, 1
/// when a second signal cut it short.
///
/// # Errors
/// [`StartError`]
pub fn run(config_json: &str) -> Result<i32, StartError> {
    let config = Config::from_json(config_json).map_err(StartError::Config)?;
    configure_log(config.log);
    // The standard hook writes to standard error, which may block.
    std::panic::set_hook(Box::new(|panic| log(Level::Error, panic.to_string())));
    let runtime = Builder::new_multi_thread()
        .worker_threads(config.worker_threads)
        .thread_name("gateway")
        .enable_all()
        .build()?;
    let code = runtime.block_on(live(config));
    runtime.shutdown_background();
    flush_log(LOG_PATIENCE);
    code
}

async fn live(config: Config) -> Result<i32, StartError> {
    let mut signals = Signals::install()?;
    let manager = ServiceManager::new(config.notify_socket.clone());
    let serving = Serving::start(config).await?;
    let found = tokio::select! {
        found = serving.gateway.ready(READY_PATIENCE) => found,
        () = signals.next() => return Ok(0),
    };
    if !found {
        log(Level::Warning, "no replica takes requests yet".to_owned());
    }
    log(Level::Info, format!("ready, listening on {}", serving.url));
    manager.ready(&format!("listening on {}", serving.url));
    signals.next().await;
    manager.stopping();
    Ok(wind_down(serving, &mut signals).await)
}

async fn wind_down(serving: Serving, signals: &mut Signals) -> i32 {
    let open = serving.gateway.open_requests();
    log(
        Level::Info,
        format!("draining: {open} requests open; a second signal ends them at once"),
    );
    let mut cut = false;
    let hurry = async {
        let first = Instant::now();
        while first.elapsed() < ONE_SIGNAL {
            signals.next().await;
        }
        cut = true;
    };
    serving.drain(hurry).await;
    log(Level::Info, "stopped".to_owned());
    i32::from(cut)
}
