//! The life of a process.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::unbounded_channel;

use crate::config::{Engine, HttpConfig, SimError, WireConfig, read};
use crate::driver::{Clock, Driver};
use crate::http::{App, Counters, HttpPublisher, accept, router};
use crate::timer::PreciseTimer;
use crate::wire;

/// Serves OpenAI's API until SIGTERM or SIGINT (exit status 0) or until the engine dies on purpose
/// (1). Standard output gets one line for each replica when all of them listen.
///
/// # Errors
/// A configuration that is not valid, a tokenizer that cannot be read, an address that cannot be
/// bound.
pub fn serve_http(config_json: &str) -> Result<i32, SimError> {
    let config: HttpConfig = read(config_json)?;
    config.check()?;
    let engine = config.engine.clone().open()?;
    let runtime = runtime(config.threads)?;
    let status = runtime.block_on(live(config, engine));
    runtime.shutdown_background();
    status
}

/// Serves the front door at `socket` until it says SHUTDOWN, goes away, or the engine dies on
/// purpose (exit status 1).
///
/// # Errors
/// A configuration that is not valid, a socket that nobody listens on, a front door that breaks the
/// protocol.
pub fn serve_wire(socket: &str, config_json: &str) -> Result<i32, SimError> {
    let config: WireConfig = read(config_json)?;
    let engine = config.engine.open()?;
    let runtime = runtime(1)?;
    let status = runtime.block_on(wire::live(socket.as_ref(), engine));
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
    let listeners = listen(&config).await?;
    let mut addresses = Vec::new();
    for listener in listeners {
        addresses.push(listener.local_addr()?);
        replica(listener, &config, &engine)?;
    }
    announce(&addresses)?;
    tokio::select! {
        () = signals.next() => Ok(0),
        () = engine.death() => Ok(1),
    }
}

async fn listen(config: &HttpConfig) -> Result<Vec<TcpListener>, SimError> {
    let mut listeners = Vec::new();
    for replica in 0..config.replicas {
        let port = if config.port == 0 {
            0
        } else {
            config.port + replica
        };
        let bound = TcpListener::bind((config.host.as_str(), port)).await;
        listeners.push(bound.map_err(|source| SimError::Bind {
            host: config.host.clone(),
            port,
            source,
        })?);
    }
    Ok(listeners)
}

/// Starts one engine and its server; they end with the runtime.
fn replica(listener: TcpListener, config: &HttpConfig, engine: &Engine) -> Result<(), SimError> {
    let (commands, inbox) = unbounded_channel();
    let clock = Clock::new();
    let counters = Arc::new(Counters::default());
    let publisher = HttpPublisher::new(engine.vocabulary.clone(), counters.clone());
    let driver = Driver::new(
        engine.batcher(),
        publisher,
        inbox,
        clock,
        PreciseTimer::new()?,
    );
    tokio::spawn(driver.run());
    let app = App {
        model: config.served_model_name.clone(),
        version: config.version.clone(),
        profile: engine.profile.clone(),
        vocabulary: engine.vocabulary.clone(),
        counters,
        faults: engine.faults.clone(),
        draws_lengths: engine.lengths.is_some(),
        commands,
        clock,
        requests: AtomicU64::new(0),
    };
    tokio::spawn(accept(listener, router(Arc::new(app))));
    Ok(())
}

fn announce(addresses: &[SocketAddr]) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for address in addresses {
        writeln!(out, "listening on http://{address}")?;
    }
    out.flush()
}

pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn install() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
