//! The life of the process.

use std::time::Instant;

use penstock_http::Signals;
use tokio::runtime::{Builder, Runtime};

use crate::config::Config;
use crate::server::{Server, StartError};
use crate::startup::{limits, log};

/// Threads for long texts; more would only take the cores from the engine.
const BLOCKING_THREADS: usize = 4;

/// Serves until SIGTERM or SIGINT, drains, and returns the exit code: 0 after a drain, 1 when the
/// engine could not start or a second signal cut the drain short.
///
/// # Errors
/// A configuration that is not valid, an address that cannot be bound, a socket that cannot be
/// made.
pub fn run(config_json: &str) -> Result<i32, StartError> {
    let config = Config::from_json(config_json).map_err(StartError::Config)?;
    let runtime = runtime(&config).map_err(StartError::Runtime)?;
    let code = runtime.block_on(live(config));
    // A thread that tokenizes for a client who has left must not hold up the exit.
    runtime.shutdown_background();
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
    let server = Server::start(config).await?;
    let outcome = tokio::select! {
        outcome = server.ready() => outcome,
        () = signals.next() => {
            log("stopped while starting");
            server.drain(std::future::ready(())).await;
            return Ok(0);
        }
    };
    let ready = match outcome {
        Ok(ready) => ready,
        Err(error) => {
            log(&format!("error: {error}"));
            server.drain(std::future::ready(())).await;
            return Ok(1);
        }
    };
    log(&format!(
        "ready {:.2} s ({}), listening on http://{}",
        began.elapsed().as_secs_f64(),
        limits(&ready),
        server.address()
    ));
    let changes = tokio::spawn(server.log_engine_changes());
    signals.next().await;
    let code = wind_down(server, &mut signals).await;
    changes.abort();
    Ok(code)
}

async fn wind_down(server: Server, signals: &mut Signals) -> i32 {
    log(&format!(
        "draining: {} requests open; a second signal ends them at once",
        server.open_requests()
    ));
    let mut cut = false;
    let hurry = async {
        signals.next().await;
        cut = true;
    };
    server.drain(hurry).await;
    log("stopped");
    i32::from(cut)
}
