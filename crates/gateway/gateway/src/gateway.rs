//! State shared by all requests.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request};
use penstock_api_http::{Failure, Guard};
use penstock_api_types::ApiError;
use penstock_http::{BodyBudget, Caller, Client, HeldBody, Keys, RandomIds, Tracer, read_body};
use tracing::warn;

use crate::config::{Config, PoolConfig};
use crate::error::StartError;
use crate::flow::{Class, Classes};
use crate::headers::BackendKey;
use crate::metrics::Metrics;
use crate::models::{Destination, Models};
use crate::picks::Picks;
use crate::pool::Pool;
use crate::stop::ShutdownSignal;

/// Default maximum size of a request body in bytes. Large enough for images encoded as text.
const MAX_BODY_BYTES: usize = 20 << 20;

/// The gateway: pools, rules, keys and counters.
#[derive(Debug)]
pub struct Gateway {
    pub(crate) config: Config,
    pub(crate) client: Client,
    /// Client for the gateway's own requests to replicas (health checks, metrics), with the
    /// replicas' API key.
    pub(crate) poller: Client,
    pub(crate) models: Models,
    pub(crate) classes: Classes,
    pub(crate) metrics: Metrics,
    pub(crate) picks: Picks,
    pub(crate) backend_key: BackendKey,
    /// Start of the gateway, in seconds of Unix time.
    pub(crate) started: u64,
    pub(crate) guard: Arc<Guard>,
    /// The pools as last configured. Locked during a reload.
    pub(crate) pools: Mutex<Vec<PoolConfig>>,
    /// Configuration warnings that have been logged.
    warned: Mutex<Vec<String>>,
    bodies: BodyBudget,
    /// Memory budget of the request bodies that are kept for failover.
    pub(crate) kept_bodies: BodyBudget,
    /// Signals that streams still open after the drain must end.
    pub(crate) stopper: ShutdownSignal,
    open: Arc<AtomicUsize>,
    draining: AtomicBool,
}

/// A permit among the requests in flight, held by an admitted request until its response ends.
#[derive(Debug)]
pub(crate) struct RequestPermit(Arc<AtomicUsize>);

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Gateway {
    /// Starts the fleets of all pools on the current tokio runtime.
    ///
    /// # Errors
    /// [`StartError`]
    pub fn new(config: Config) -> Result<Self, StartError> {
        let keys = Keys::start(config.api_keys.clone(), config.api_key_file.clone());
        let keys = keys.map_err(StartError::Config)?;
        let client = Client::new(Duration::from_secs_f64(config.connect_timeout_s))?;
        let backend_key = backend_key(&config)?;
        let poller = client.authorized(backend_key.own());
        let start = |pool| Ok(Arc::new(Pool::start(pool, poller.clone())?));
        let pools = config.pools.iter().map(start);
        let pools = pools.collect::<Result<Vec<_>, StartError>>()?;
        let metrics = Metrics::new();
        let (endpoint, service) = (config.otlp_traces_endpoint.as_deref(), "penstock-gateway");
        let tracer = endpoint.map(|endpoint| Tracer::start(endpoint, service, &config.version));
        let guard = Guard {
            keys,
            tracer: tracer.transpose().map_err(StartError::Config)?,
            admin_key: None,
            allowed_origins: config.allowed_origins.clone(),
            page: config.ui,
            access_log: config.access_log,
            counts: metrics.http.clone(),
            ids: RandomIds::default(),
        };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            models: Models::new(&config.models, pools),
            classes: Classes::new(&config.objectives),
            backend_key,
            bodies: BodyBudget::new(&config.limits),
            kept_bodies: BodyBudget::of(config.resume_bytes, 0),
            stopper: ShutdownSignal::new(),
            started: since_epoch.unwrap_or_default().as_secs(),
            guard: Arc::new(guard),
            open: Arc::default(),
            draining: AtomicBool::new(false),
            pools: Mutex::new(config.pools.clone()),
            warned: Mutex::default(),
            client,
            poller,
            metrics,
            picks: Picks::default(),
            config,
        })
    }

    /// Logs the configuration warnings that have not been logged yet.
    pub(crate) fn warn(&self, warnings: &[String]) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in warnings.iter().filter(|one| !warned.contains(one)) {
            warn!("{warning}");
        }
        *warned = warnings.to_vec();
    }

    /// Admits one more request.
    ///
    /// # Errors
    /// 503 while draining, 429 at the maximum number of requests in flight.
    pub(crate) fn admit(&self) -> Result<RequestPermit, ApiError> {
        if self.draining() {
            return Err(ApiError::unavailable("The gateway is shutting down.", 5));
        }
        let permit = RequestPermit(self.open.clone());
        if self.open.fetch_add(1, Ordering::AcqRel) >= self.config.max_requests {
            self.metrics.refused();
            drop(permit);
            return Err(ApiError::saturated(1));
        }
        Ok(permit)
    }

    pub(crate) async fn read_body(&self, request: Request<Body>) -> Result<HeldBody, Failure> {
        let (limit, limits) = (self.most_bytes(), &self.config.limits);
        Ok(read_body(request, limit, limits, &self.bodies).await?)
    }

    /// A buffer for a body that arrives in pieces.
    pub(crate) fn hold_body(&self) -> HeldBody {
        self.bodies.hold()
    }

    /// Memory budget of the request bodies that are being read.
    pub(crate) fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// Maximum size of a request body in bytes.
    pub(crate) fn most_bytes(&self) -> usize {
        self.config.limits.max_body_bytes.unwrap_or(MAX_BODY_BYTES)
    }

    /// Finds the pool for a model's requests. If `only` is given, no other pool is considered.
    ///
    /// # Errors
    /// 404: no such model.
    pub(crate) fn destination(
        &self,
        asked: Option<&str>,
        only: Option<&str>,
    ) -> Result<Destination, ApiError> {
        let found = self.models.destination(asked, only);
        found.ok_or_else(|| {
            ApiError::model_not_found(asked.unwrap_or_default(), &self.models.names(only))
        })
    }

    /// The class of a request: its priority and tenant, which order it in the queue of a full pool.
    pub(crate) fn class(
        &self,
        headers: &HeaderMap,
        caller: Option<&Caller>,
        destination: &Destination,
    ) -> Class {
        let (pool, usual) = (&destination.pool.name, destination.priority);
        self.classes.class(headers, caller, pool, usual)
    }

    /// Starts refusing new requests.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Whether more than half of the allowed requests are in flight; optional work such as
    /// mirroring is then skipped.
    pub(crate) fn is_busy(&self) -> bool {
        self.open_requests() > self.config.max_requests / 2
    }

    /// Number of requests in flight.
    pub fn open_requests(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn has_replica(&self) -> bool {
        self.models.pools().iter().any(|pool| pool.has_replica())
    }

    pub(crate) fn metrics_page(&self) -> String {
        let pools = self.models.pools();
        let counts = (self.open_requests(), self.client.sent_again());
        self.metrics.page(
            &self.config.version,
            &pools,
            counts,
            self.guard.tracer.as_ref(),
        )
    }

    /// Waits until all replicas have been checked once, up to `patience` for each pool. Returns
    /// whether at least one replica accepts requests.
    pub async fn ready(&self, patience: Duration) -> bool {
        for pool in self.models.pools().iter() {
            pool.fleet.ready(patience).await;
        }
        self.has_replica()
    }
}

fn backend_key(config: &Config) -> Result<BackendKey, StartError> {
    let Some(key) = &config.backend_api_key else {
        let own = !config.api_keys.is_empty() || config.api_key_file.is_some();
        return Ok(match own {
            true => BackendKey::None,
            false => BackendKey::Clients,
        });
    };
    let bearer = HeaderValue::from_str(&format!("Bearer {key}"));
    let mut bearer = bearer.map_err(|_| {
        StartError::Config("the backends' key has characters that no header can have".to_owned())
    })?;
    bearer.set_sensitive(true);
    Ok(BackendKey::Own(bearer))
}
