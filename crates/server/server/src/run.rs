//! Lifecycle of the process.

use std::time::Instant;

use penstock_http::{ServiceManager, Signals, run_process, wind_down};
use tracing::{error, info};

use crate::config::Config;
use crate::lanes::Lanes;
use crate::server::{Server, StartError};
use crate::startup::limits;

/// Serves until SIGTERM, SIGINT or SIGHUP, drains, and returns the exit code: 0 after a drain; 1 if
/// the engine could not start or failed for good, or if a second signal cut the drain short.
///
/// # Errors
/// The configuration is invalid, the address cannot be bound, or the engine's socket cannot be
/// created.
pub fn run(config_json: &str) -> Result<i32, StartError> {
    let config = Config::from_json(config_json).map_err(StartError::Config)?;
    let threads = (config.worker_threads, Lanes::threads(&config.limits));
    run_process(config.log, "front-door", threads, live(config)).map_err(StartError::Runtime)?
}

async fn live(config: Config) -> Result<i32, StartError> {
    let began = Instant::now();
    let mut signals = Signals::install().map_err(StartError::Signals)?;
    let manager = ServiceManager::new(config.notify_socket.clone());
    let server = Server::start(config).await?;
    let outcome = tokio::select! {
        outcome = server.ready() => outcome,
        () = signals.next() => {
            info!("stopped while starting");
            server.drain(std::future::ready(())).await;
            return Ok(0);
        }
    };
    let ready = match outcome {
        Ok(ready) => ready,
        Err(error) => {
            error!("error: {error}");
            server.drain(std::future::ready(())).await;
            return Ok(1);
        }
    };
    info!(
        "ready {:.2} s ({}), listening on {}",
        began.elapsed().as_secs_f64(),
        limits(&ready),
        server.url()
    );
    manager.ready(&format!("listening on {}", server.url()));
    let mut changes = tokio::spawn(server.log_engine_changes());
    let code = tokio::select! {
        () = signals.next() => {
            manager.stopping();
            let open = server.open_requests();
            wind_down(open, &mut signals, async |hurry| server.drain(hurry).await).await
        }
        Ok(state) = &mut changes => {
            error!("error: {state}");
            server.drain(std::future::ready(())).await;
            1
        }
    };
    changes.abort();
    Ok(code)
}
