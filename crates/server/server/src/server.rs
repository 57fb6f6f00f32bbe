//! Lifecycle of a server, without signal handling.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_engine_client::{Engine, EngineConfig, EngineError, EngineState, SocketPlace};
use penstock_http::{Connections, Keys, Listener, Tls, Tracer, bind_remedy};
use penstock_wire::Ready;

use crate::app::App;
use crate::config::{Config, EngineProcess};
use crate::metrics::Metrics;
use crate::routes::{metrics_router, router};
use crate::startup::{self, EngineLog, StartupError};

/// Time-out for the engine to end its requests and exit.
const ENGINE_PATIENCE: Duration = Duration::from_secs(5);
/// Time-out for the exit of an engine with KV tiers, which flushes pending writes for up to 10 s.
const FLUSH_PATIENCE: Duration = Duration::from_secs(15);
/// Time-out for connections to write the rest of their responses.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(2);
const DRAIN_TICK: Duration = Duration::from_millis(10);

/// Reason that a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(String),
    #[error("cannot start the runtime: {0}")]
    Runtime(std::io::Error),
    #[error("cannot listen on {place}: {source}; {}", bind_remedy(.source))]
    Bind {
        place: String,
        source: std::io::Error,
    },
    #[error("cannot handle signals: {0}")]
    Signals(std::io::Error),
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A listening server. It accepts requests at once; generation returns 503 until [`Server::ready`].
pub struct Server {
    app: Arc<App>,
    url: String,
    connections: Connections,
    /// Connections of the metrics port.
    scrapers: Option<Connections>,
}

impl Server {
    /// Binds the port, then starts the engine: a port in use is thus reported before any expensive
    /// work.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let keys = Keys::start(config.api_keys.clone(), config.api_key_file.clone());
        let keys = keys.map_err(StartError::Config)?;
        let endpoint = config.otlp_traces_endpoint.as_deref();
        let tracer = endpoint.map(|endpoint| Tracer::start(endpoint, "penstock", &config.version));
        let tracer = tracer.transpose().map_err(StartError::Config)?;
        let (listener, url) = listen(&config).await?;
        let scraped = match config.metrics_port {
            Some(port) => Some(listen_on(&config.host, port, None).await?),
            None => None,
        };
        let metrics = Arc::new(Metrics::new(&config.served_model_names[0], &config.version));
        let witness = EngineLog::new(metrics.clone());
        let engine = Engine::start_observed(engine_config(&config), Arc::new(witness))?;
        let limits = config.limits.clone();
        let app = Arc::new(App::new(config, (keys, tracer), engine, metrics));
        let scrapers = scraped.map(|(listener, _)| {
            Connections::accept(listener, metrics_router(app.clone()), limits.clone())
        });
        let connections = Connections::accept(listener, router(app.clone()), limits);
        Ok(Self {
            app,
            url,
            connections,
            scrapers,
        })
    }

    /// Listening URL: `http://host:port` with the bound port, or `unix:path`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Socket path for an external engine.
    pub fn engine_socket(&self) -> &Path {
        self.app.engine.socket_path()
    }

    /// Loads the tokenizer, waits for the engine, and logs each stage of both. Returns the engine's
    /// limits.
    ///
    /// # Errors
    /// The tokenizer files are unusable or the engine cannot start; the error names the reason.
    pub async fn ready(&self) -> Result<Arc<Ready>, StartupError> {
        startup::complete(&self.app).await
    }

    /// Requests in flight.
    pub fn open_requests(&self) -> usize {
        self.app.in_flight()
    }

    /// Logs losses and restarts of the engine until it has failed for good or stopped.
    pub(crate) fn log_engine_changes(&self) -> impl Future<Output = EngineState> + use<> {
        startup::log_changes(self.app.engine.clone())
    }

    /// Rejects new requests and waits for those in flight, up to the drain time-out or until
    /// `hurry`; then shuts down the engine and closes the connections.
    pub async fn drain(self, hurry: impl Future<Output = ()>) {
        self.app.drain();
        let patience = Duration::from_secs_f64(self.app.config.drain_timeout_s);
        let tiers = self
            .app
            .limits()
            .is_some_and(|limits| limits.kv_tiers.any());
        let engine = if tiers {
            FLUSH_PATIENCE
        } else {
            ENGINE_PATIENCE
        };
        tokio::select! {
            () = all_ended(&self.app) => self.close(engine, CONNECTION_PATIENCE).await,
            () = tokio::time::sleep(patience) => self.close(engine, CONNECTION_PATIENCE).await,
            () = hurry => self.close(Duration::ZERO, Duration::ZERO).await,
        }
    }

    /// Shuts down the engine before the connections, because requests that the engine cancels still
    /// need their connections.
    async fn close(self, engine: Duration, connections: Duration) {
        self.app.engine.shutdown(engine).await;
        self.connections.close(connections).await;
        if let Some(scrapers) = self.scrapers {
            scrapers.close(Duration::ZERO).await;
        }
        if let Some(tracer) = &self.app.guard.tracer {
            tracer.flush(connections).await;
        }
    }
}

/// Binds the listener for requests and returns it with its URL.
async fn listen(config: &Config) -> Result<(Listener, String), StartError> {
    if let Some(path) = &config.uds {
        let bind = || {
            let listener = Listener::unix(path)?;
            let url = listener.url()?;
            Ok((listener, url))
        };
        return bind().map_err(|source| StartError::Bind {
            place: path.display().to_string(),
            source,
        });
    }
    let tls = config.tls.clone().map(Tls::start).transpose();
    let tls = tls.map_err(StartError::Config)?;
    listen_on(&config.host, config.port, tls).await
}

async fn listen_on(
    host: &str,
    port: u16,
    tls: Option<Tls>,
) -> Result<(Listener, String), StartError> {
    let bound = async {
        let listener = Listener::tcp(host, port, tls).await?;
        let url = listener.url()?;
        Ok((listener, url))
    };
    bound.await.map_err(|source| StartError::Bind {
        place: format!("{host}:{port}"),
        source,
    })
}

async fn all_ended(app: &App) {
    while app.in_flight() > 0 {
        tokio::time::sleep(DRAIN_TICK).await;
    }
}

fn socket_place(engine: &EngineProcess) -> SocketPlace {
    match (&engine.socket_dir, &engine.runtime_dir) {
        (Some(dir), _) => SocketPlace::Directory(dir.clone()),
        (None, Some(parent)) => SocketPlace::PrivateIn(parent.clone()),
        (None, None) => SocketPlace::default(),
    }
}

fn engine_config(config: &Config) -> EngineConfig {
    EngineConfig {
        argv: config.engine.argv.clone(),
        input: config.engine.input.clone(),
        socket: socket_place(&config.engine),
        stall_timeout: Duration::from_secs_f64(config.stall_timeout_s),
        ..EngineConfig::default()
    }
}
