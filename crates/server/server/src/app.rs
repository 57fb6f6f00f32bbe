//! State shared by all requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use penstock_api_http::{Failure, Guard};
use penstock_api_types::ApiError;
use penstock_engine_client::Engine;
use penstock_http::{BodyBudget, HeldBody, Keys, RandomIds, Tracer, read_body};
use penstock_tokenizer::TextModel;
use penstock_wire::Ready;

use crate::admission::{AdmissionLimiter, AdmissionPermit, Limits};
use crate::config::Config;
use crate::grammar::Grammars;
use crate::lanes::Lanes;
use crate::load::LoadStreams;
use crate::metrics::{EngineView, Metrics, Rejection};
use crate::reading::Formats;
use crate::render::Identity;
use crate::request_meta::unix_now;

/// `Retry-After` in seconds. A full queue accepts requests again after about one second; a start or
/// drain takes longer.
const RETRY_QUEUE: u32 = 1;
const MAX_RETRY_QUEUE: u32 = 60;
const RETRY_ENGINE: u32 = 2;
const RETRY_DRAIN: u32 = 5;

pub(crate) struct App {
    pub(crate) config: Config,
    pub(crate) guard: Arc<Guard>,
    pub(crate) engine: Engine,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lanes: Lanes,
    pub(crate) grammars: Grammars,
    pub(crate) load_streams: LoadStreams,
    bodies: BodyBudget,
    limiter: AdmissionLimiter,
    /// Empty until the model's text files have been read.
    text: OnceLock<(Arc<TextModel>, Formats)>,
    draining: AtomicBool,
    started: u64,
}

impl App {
    pub(crate) fn new(
        config: Config,
        (keys, tracer): (Keys, Option<Tracer>),
        engine: Engine,
        metrics: Arc<Metrics>,
    ) -> Self {
        let guard = Guard {
            keys,
            tracer,
            admin_key: config.admin_api_key.clone(),
            allowed_origins: config.allowed_origins.clone(),
            page: config.ui,
            access_log: config.access_log,
            counts: metrics.http.clone(),
            ids: RandomIds::default(),
        };
        Self {
            lanes: Lanes::new(&config.limits),
            grammars: Grammars::new(&config.job_command),
            load_streams: LoadStreams::default(),
            bodies: BodyBudget::new(&config.limits),
            config,
            guard: Arc::new(guard),
            engine,
            metrics,
            limiter: AdmissionLimiter::default(),
            text: OnceLock::new(),
            draining: AtomicBool::new(false),
            started: unix_now(),
        }
    }

    /// Sets the model's tokenizer and template. Later calls are no-ops.
    pub(crate) fn set_text(&self, text: Arc<TextModel>) {
        let formats = Formats::of(&text, &self.config);
        let _ = self.text.set((text, formats));
    }

    /// The tokenizer and template; 503 until they are loaded.
    pub(crate) fn text(&self) -> Result<&TextModel, ApiError> {
        self.text_and_formats().map(|(text, _)| text.as_ref())
    }

    /// Formats of the model's tool calls and reasoning; 503 until the template is loaded.
    pub(crate) fn formats(&self) -> Result<&Formats, ApiError> {
        self.text_and_formats().map(|(_, formats)| formats)
    }

    fn text_and_formats(&self) -> Result<&(Arc<TextModel>, Formats), ApiError> {
        self.text.get().ok_or_else(|| {
            ApiError::unavailable("The server is starting: no tokenizer yet.", RETRY_ENGINE)
        })
    }

    /// Reads the whole body of a request, within the limits.
    pub(crate) async fn read_body(&self, request: Request<Body>) -> Result<HeldBody, Failure> {
        let limit = self.body_limit();
        Ok(read_body(request, limit, &self.config.limits, &self.bodies).await?)
    }

    /// Upper bound on the body size. Default: the longest text that fits the context, plus room for
    /// the other fields.
    fn body_limit(&self) -> usize {
        let limits = &self.config.limits;
        limits.max_body_bytes.unwrap_or_else(|| {
            let text = self.text.get().zip(self.max_model_len());
            let text = text.and_then(|((text, _), tokens)| text.longest_text(tokens));
            text.unwrap_or(0).saturating_add(limits.json_bytes)
        })
    }

    /// Context length in tokens; `None` while no engine is ready and none is configured.
    pub(crate) fn max_model_len(&self) -> Option<u32> {
        let ready = self.limits().map(|limits| limits.max_model_len);
        ready.or(self.config.max_model_len)
    }

    /// Starts the drain: new generation requests are rejected.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    pub(crate) fn draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.limiter.taken()
    }

    /// Returns 404 unless the requested model name is absent or served.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        let names = &self.config.served_model_names;
        match asked {
            Some(name) if !names.iter().any(|served| served == name) => {
                Err(ApiError::model_not_found(name, names))
            }
            _ => Ok(()),
        }
    }

    /// Rejects the text in `field` if the server has no tokenizer.
    pub(crate) fn check_tokenizer(&self, field: &'static str) -> Result<(), ApiError> {
        match self.config.skip_tokenizer_init {
            true => Err(ApiError::no_tokenizer(field)),
            false => Ok(()),
        }
    }

    /// Identity of a response. Its model name is the requested one, or else the first served one.
    pub(crate) fn identity(
        &self,
        prefix: &str,
        request_id: &str,
        asked: Option<String>,
        created: u64,
    ) -> Identity {
        Identity {
            id: format!("{prefix}-{request_id}"),
            created,
            model: self.model_name(asked.as_deref()).to_owned(),
        }
    }

    /// The requested model's name, or else the first served one.
    pub(crate) fn model_name<'a>(&'a self, asked: Option<&'a str>) -> &'a str {
        asked.unwrap_or(&self.config.served_model_names[0])
    }

    /// Admits `count` engine requests.
    ///
    /// # Errors
    /// 503 while draining, without a healthy engine, or at capacity; 400 if `count` exceeds the
    /// capacity.
    pub(crate) fn admit(&self, count: usize) -> Result<AdmissionPermit, ApiError> {
        if self.draining() {
            self.metrics.rejected(Rejection::Draining);
            return Err(ApiError::unavailable(
                "The server is shutting down.",
                RETRY_DRAIN,
            ));
        }
        let limits = self.limits().filter(|_| self.engine.healthy().is_ok());
        let limits = limits.ok_or_else(|| self.engine_down())?;
        if count > limits.capacity {
            let message = format!(
                "prompt holds {count} prompts, more than the {} this server takes.",
                limits.capacity
            );
            return Err(ApiError::invalid("prompt", message));
        }
        self.limiter.acquire(count, limits).map_err(|wait| {
            self.metrics.rejected(Rejection::QueueFull);
            ApiError::queue_full((wait.as_secs() as u32).clamp(RETRY_QUEUE, MAX_RETRY_QUEUE))
        })
    }

    /// Admits a pooled request. The request gets a slot per input, but no more slots than the
    /// engine runs requests concurrently; further inputs reuse them.
    ///
    /// # Errors
    /// Same as for [`Self::admit`].
    pub(crate) fn admit_pooled(&self, inputs: usize) -> Result<AdmissionPermit, ApiError> {
        let running = self.limits().map_or(1, |limits| limits.running.max(1));
        self.admit(inputs.min(running))
    }

    /// Error for requests while the engine is not ready or not healthy.
    pub(crate) fn engine_down(&self) -> ApiError {
        self.metrics.rejected(Rejection::EngineUnavailable);
        let reason = self.engine.healthy().err();
        let reason = reason.unwrap_or_else(|| self.engine.state().to_string());
        ApiError::unavailable(format!("No engine: {reason}."), RETRY_ENGINE)
    }

    /// Limits of the ready engine; `None` while no engine is ready.
    pub(crate) fn limits(&self) -> Option<Limits> {
        self.engine
            .state()
            .ready()
            .map(|ready| self.limits_of(ready))
    }

    fn limits_of(&self, ready: &Ready) -> Limits {
        let own = self.config.max_model_len.unwrap_or(u32::MAX);
        Limits {
            max_model_len: ready.max_model_len.min(own),
            vocab_size: ready.vocab_size,
            capacity: self
                .config
                .max_queue
                .saturating_add(ready.max_num_seqs as usize),
            running: ready.max_num_seqs as usize,
            max_wait: self.config.max_queue_wait_s.map(Duration::from_secs_f64),
            kv_tiers: ready.kv_tiers,
            pooler: ready.pooler,
        }
    }

    /// Renders the page of `GET /metrics`.
    pub(crate) fn metrics_page(&self) -> String {
        let state = self.engine.state();
        let ready = state.ready();
        self.metrics.render(&EngineView {
            stats: self.engine.stats(),
            ready: ready.map(Arc::as_ref),
            tiers: self.engine.tiers(),
            in_flight: self.in_flight(),
            history: self.engine.history(),
            ranks: self.config.ranks,
            tracer: self.guard.tracer.as_ref(),
        })
    }

    /// Start time of the server, in Unix seconds.
    pub(crate) fn started(&self) -> u64 {
        self.started
    }
}
