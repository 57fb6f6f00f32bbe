//! A gateway with its listeners.

use std::sync::Arc;
use std::time::Duration;

use penstock_http::{Connections, Limits, Listener, Tls};

use crate::config::Config;
use crate::envoy::EnvoyDoor;
use crate::error::StartError;
use crate::gateway::Gateway;
use crate::routes::router;

/// Interval at which a drain checks whether requests are in flight.
const DRAIN_TICK: Duration = Duration::from_millis(20);
/// Time-out for connections to flush their last bytes.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(1);

/// A gateway that listens on its address.
#[derive(Debug)]
pub struct Serving {
    pub gateway: Arc<Gateway>,
    /// `http://host:port` with the actual port, or `unix:path`.
    pub url: String,
    /// Address of the endpoint picker, `http://host:port`; `None`: there is no picker.
    pub picker_url: Option<String>,
    connections: Connections,
    picker: Option<Connections>,
}

/// Number of HTTP/2 streams that a connection may have in addition to the requests in flight: for
/// refusals and health checks.
const MORE_STREAMS: u32 = 1000;
/// Maximum size of an Envoy message in bytes, excluding the request body that it carries.
const MESSAGE: usize = 1 << 20;

impl Serving {
    /// Starts the fleets and listens, on the current tokio runtime.
    ///
    /// # Errors
    /// [`StartError`]
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let tls = config.tls.clone().map(Tls::start).transpose();
        let tls = tls.map_err(StartError::Config)?;
        let listener = listen(&config, tls.clone()).await?;
        let url = listener.url()?;
        let picker = match &config.ext_proc {
            Some(at) => Some(bind(&at.host, at.port, tls).await?),
            None => None,
        };
        let picker_url = picker.as_ref().map(Listener::url).transpose()?;
        let gateway = Arc::new(Gateway::new(config)?);
        let limits = gateway.config.limits.clone();
        let connections = Connections::accept(listener, router(gateway.clone()), limits);
        let picker = picker.map(|listener| pick_for_envoy(listener, &gateway));
        Ok(Self {
            gateway,
            url,
            picker_url,
            connections,
            picker,
        })
    }

    /// Refuses new requests, waits for open ones until the configured time has passed or `hurry`
    /// completes, and closes the connections.
    pub async fn drain(self, hurry: impl Future<Output = ()>) {
        self.gateway.drain();
        let patience = Duration::from_secs_f64(self.gateway.config.drain_timeout_s);
        let all_ended = async {
            while self.gateway.open_requests() > 0 {
                tokio::time::sleep(DRAIN_TICK).await;
            }
        };
        let left = tokio::select! {
            () = all_ended => CONNECTION_PATIENCE,
            () = tokio::time::sleep(patience) => {
                self.gateway.stopper.stop();
                CONNECTION_PATIENCE
            }
            () = hurry => Duration::ZERO,
        };
        let closing = self.connections.close(left);
        match self.picker {
            Some(picker) => drop(tokio::join!(closing, picker.close(left))),
            None => closing.await,
        }
        if let Some(tracer) = &self.gateway.guard.tracer {
            tracer.flush(left).await;
        }
    }
}

/// Serves the endpoint picker on a listener. A connection from Envoy carries one stream per open
/// request.
fn pick_for_envoy(listener: Listener, gateway: &Arc<Gateway>) -> Connections {
    let config = &gateway.config;
    let pool = config.ext_proc.as_ref().and_then(|at| at.pool.as_deref());
    let door = EnvoyDoor::new(gateway.clone(), pool);
    let most = u32::try_from(config.max_requests).unwrap_or(u32::MAX);
    let limits = Limits {
        max_streams: most.saturating_add(MORE_STREAMS),
        ..config.limits.clone()
    };
    let router = penstock_extproc::router(door, gateway.most_bytes() + MESSAGE);
    Connections::accept(listener, router, limits)
}

async fn listen(config: &Config, tls: Option<Tls>) -> Result<Listener, StartError> {
    let Some(path) = &config.uds else {
        return bind(&config.host, config.port, tls).await;
    };
    let place = path.display().to_string();
    Listener::unix(path).map_err(|source| StartError::Bind { place, source })
}

async fn bind(host: &str, port: u16, tls: Option<Tls>) -> Result<Listener, StartError> {
    let place = format!("{host}:{port}");
    let bound = Listener::tcp(host, port, tls).await;
    bound.map_err(|source| StartError::Bind { place, source })
}
