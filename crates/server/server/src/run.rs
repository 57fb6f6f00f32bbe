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
    run_process(config.log, "server", threads, live(config)).map_err(StartError::Runtime)?
}

async fn live(config: Config) -> Result<i32, StartError> {
    let began = Instant::now();
    let mut signals = Signals::install().map_err(StartError::Signals)?;
    let manager = ServiceManager::new(config.notify_socket.clone());
    let has_keys = !config.api_keys.is_empty() || config.api_key_file.is_some();
    let is_unix = config.uds.is_some();
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
        "ready {:.2} s ({}; {}), listening on {}",
        began.elapsed().as_secs_f64(),
        if has_keys {
            "with a key"
        } else {
            "open, no key"
        },
        limits(&ready),
        server.url()
    );
    if !is_unix {
        info!("try: {}", suggestion(server.url(), has_keys));
    }
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

/// Commands for a first request to a server at `url`.
fn suggestion(url: &str, has_keys: bool) -> String {
    if has_keys {
        return format!(
            "PENSTOCK_API_KEY=... penstock chat --url {url}, or curl -H 'Authorization: Bearer \
             ...' {url}/v1/models"
        );
    }
    format!("penstock chat --url {url}, or curl {url}/v1/models")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suggestion_has_a_place_for_the_key() {
        assert_eq!(
            suggestion("http://127.0.0.1:8000", false),
            "penstock chat --url http://127.0.0.1:8000, or curl http://127.0.0.1:8000/v1/models"
        );
        let keyed = suggestion("http://h:1", true);
        assert!(keyed.starts_with("PENSTOCK_API_KEY=... penstock chat --url http://h:1, or curl "));
        assert!(keyed.ends_with(" -H 'Authorization: Bearer ...' http://h:1/v1/models"));
    }
}
