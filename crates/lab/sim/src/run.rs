//! Entry points of the simulator's processes.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use penstock_http::{Connections, Limits, Listener, LogSettings, Signals, configure_log};
use tokio::runtime::{Builder, Runtime};

use crate::config::{Engine, HttpConfig, SimError, WireConfig, read};
use crate::engine::serve_socket;
use crate::replica::replica;
use crate::timer::PreciseTimer;

/// Serves OpenAI's API until SIGTERM or SIGINT (exit status 0), or until the configured time of the
/// engine's death (exit status 1). When all replicas listen, it prints a line for each to standard
/// output.
///
/// # Errors
/// The configuration is invalid, a tokenizer cannot be read, or an address cannot be bound.
pub fn serve_http(config_json: &str) -> Result<i32, SimError> {
    let config: HttpConfig = read(config_json)?;
    config.check()?;
    configure_log("sim", LogSettings::default());
    let engine = config.engine.clone().open()?;
    let runtime = runtime(config.threads)?;
    let status = runtime.block_on(live(config, engine));
    runtime.shutdown_background();
    status
}

/// Serves the API server that listens on `socket`, until it sends SHUTDOWN or disconnects, or until
/// the configured time of the engine's death (exit status 1).
///
/// # Errors
/// The configuration is invalid, there is no listener on the socket, or the API server violates the
/// protocol.
pub fn serve_wire(socket: &str, config_json: &str) -> Result<i32, SimError> {
    let config: WireConfig = read(config_json)?;
    configure_log("sim", LogSettings::default());
    let engine = config.engine.open()?;
    let runtime = runtime(1)?;
    let status = runtime.block_on(live_on_wire(socket.as_ref(), engine));
    runtime.shutdown_background();
    status
}

fn runtime(threads: usize) -> std::io::Result<Runtime> {
    let mut builder = if threads == 1 {
        Builder::new_current_thread()
    } else {
        Builder::new_multi_thread()
    };
    builder.worker_threads(threads).enable_all().build()
}

async fn live(config: HttpConfig, engine: Engine) -> Result<i32, SimError> {
    let mut signals = Signals::install()?;
    let engine = Arc::new(engine);
    let listeners = listen(&config).await?;
    let (mut urls, mut connections) = (Vec::new(), Vec::new());
    for listener in listeners {
        urls.push(listener.url()?);
        let router = replica(&config, engine.clone(), PreciseTimer::new()?).await?;
        connections.push(Connections::accept(listener, router, Limits::default()));
    }
    announce(&urls)?;
    tokio::select! {
        () = signals.next() => Ok(0),
        () = engine.death() => Ok(1),
    }
}

async fn live_on_wire(socket: &Path, engine: Engine) -> Result<i32, SimError> {
    engine.faults.check_wire().map_err(SimError::Config)?;
    let mut signals = Signals::install()?;
    tokio::select! {
        ended = serve_socket(socket, &engine) => ended.map(|()| 0),
        () = signals.next() => Ok(0),
        () = engine.death() => Ok(1),
    }
}

async fn listen(config: &HttpConfig) -> Result<Vec<Listener>, SimError> {
    let mut listeners = Vec::new();
    for replica in 0..config.replicas {
        let port = if config.port == 0 {
            0
        } else {
            config.port + replica
        };
        let bound = Listener::tcp(&config.host, port, None).await;
        listeners.push(bound.map_err(|source| SimError::Bind {
            host: config.host.clone(),
            port,
            source,
        })?);
    }
    Ok(listeners)
}

fn announce(urls: &[String]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for url in urls {
        writeln!(out, "listening on {url}")?;
    }
    out.flush()
}
