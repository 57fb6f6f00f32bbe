//! The life of the process.

use std::time::{Duration, Instant};

use penstock_http::{Level, ServiceManager, Signals, configure_log, flush_log, log};
use tokio::runtime::{Builder, Runtime};

use crate::config::Config;
use crate::server::{Server, StartError};
use crate::startup::{info, limits};

/// Threads for long texts; more would only take the cores from the engine.
const BLOCKING_THREADS: usize = 4;
/// Signals within this time of the first are the same wish: `timeout` sends its own to the process
/// and then to the process group.
const ONE_SIGNAL: Duration = Duration::from_millis(200);
/// How long the last lines of the log may take to be written.
const LOG_PATIENCE: Duration = Duration::from_secs(1);

/// Serves until SIGTERM, SIGINT or SIGHUP, drains, and returns the exit code: 0 after a drain, 1
/// when the engine could not start or was given up, or when a second signal cut the drain short.
///
/// # Errors
/// A configuration that is not valid, an address that cannot be bound, a socket that cannot be
/// made.
pub fn run(config_json: &str) -> Result<i32, StartError> {
    let config = Config::from_json(config_json).map_err(StartError::Config)?;
    configure_log(config.log);
    // The standard hook writes to standard error, which may block.
    std::panic::set_hook(Box::new(|panic| log(Level::Error, panic.to_string())));
    let runtime = runtime(&config).map_err(StartError::Runtime)?;
    let code = runtime.block_on(live(config));
    // A thread that tokenizes for a client who has left must not hold up the exit.
    runtime.shutdown_background();
    flush_log(LOG_PATIENCE);
    code
}

fn runtime(config: &Config) -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(config.worker_threads)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("front-door")
        .enable_all()
        .build()
}

async fn live(config: Config) -> Result<i32, StartError> {
    let began = Instant::now();
    let mut signals = Signals::install().map_err(StartError::Signals)?;
    let manager = ServiceManager::new(config.notify_socket.clone());
    let server = Server::start(config).await?;
    let outcome = tokio::select! {
        outcome = server.ready() => outcome,
        () = signals.next() => {
            info("stopped while starting");
            server.drain(std::future::ready(())).await;
            return Ok(0);
        }
    };
    let ready = match outcome {
        Ok(ready) => ready,
        Err(error) => {
            log(Level::Error, format!("error: {error}"));
            server.drain(std::future::ready(())).await;
            return Ok(1);
        }
    };
    info(format!(
        "ready {:.2} s ({}), listening on {}",
        began.elapsed().as_secs_f64(),
        limits(&ready),
        server.url()
    ));
    manager.ready(&format!("listening on {}", server.url()));
    let mut changes = tokio::spawn(server.log_engine_changes());
    let code = tokio::select! {
        () = signals.next() => {
            manager.stopping();
            wind_down(server, &mut signals).await
        }
        Ok(state) = &mut changes => {
            log(Level::Error, format!("error: {state}"));
            server.drain(std::future::ready(())).await;
            1
        }
    };
    changes.abort();
    Ok(code)
}

async fn wind_down(server: Server, signals: &mut Signals) -> i32 {
    info(format!(
        "draining: {} requests open; a second signal ends them at once",
        server.open_requests()
    ));
    let mut cut = false;
    let hurry = async {
        let first = Instant::now();
        while first.elapsed() < ONE_SIGNAL {
            signals.next().await;
        }
        cut = true;
    };
    server.drain(hurry).await;
    info("stopped");
    i32::from(cut)
}
