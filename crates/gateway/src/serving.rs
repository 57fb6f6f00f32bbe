//! A gateway that listens.

use std::sync::Arc;
use std::time::Duration;

use penstock_http::{Connections, Listener, Tls};

use crate::config::Config;
use crate::gateway::{Gateway, StartError};
use crate::routes::router;

/// How often a drain looks whether all requests have ended.
const DRAIN_TICK: Duration = Duration::from_millis(20);
/// For the last bytes of connections.
const CONNECTION_PATIENCE: Duration = Duration::from_secs(1);

/// A gateway on its address.
#[derive(Debug)]
pub struct Serving {
    pub gateway: Arc<Gateway>,
    /// `http://host:port`, with the port that was taken, or `unix:path`.
    pub url: String,
    connections: Connections,
}

impl Serving {
    /// Starts the fleets and listens, on the current tokio runtime.
    ///
    /// # Errors
    /// [`StartError`]
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let listener = listen(&config).await?;
        let url = listener.url()?;
        let gateway = Arc::new(Gateway::new(config)?);
        let limits = gateway.config.limits.clone();
        let connections = Connections::accept(listener, router(gateway.clone()), limits);
        Ok(Self {
            gateway,
            url,
            connections,
        })
    }

    /// Refuses new requests, waits for the open ones up to the configured time or until `hurry`,
    /// and closes the connections.
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
            () = tokio::time::sleep(patience) => CONNECTION_PATIENCE,
            () = hurry => Duration::ZERO,
        };
        self.connections.close(left).await;
    }
}

async fn listen(config: &Config) -> Result<Listener, StartError> {
    let failed = |place: String| move |source| StartError::Bind { place, source };
    if let Some(path) = &config.uds {
        return Listener::unix(path).map_err(failed(path.display().to_string()));
    }
    let tls = config.tls.clone().map(Tls::start).transpose();
    let tls = tls.map_err(StartError::Config)?;
    let bound = Listener::tcp(&config.host, config.port, tls).await;
    bound.map_err(failed(format!("{}:{}", config.host, config.port)))
}
