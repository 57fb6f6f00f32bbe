//! A replica: the real server's router in front of a simulated engine in the same process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Request, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http_body_util::BodyExt;
use penstock_http::{Limits, LogSettings, escaped};
use penstock_server::{Config, EngineProcess, GenerationDefaults, router_over};

use crate::config::{Engine, HttpConfig, SimError};
use crate::counters::Counters;
use crate::engine;
use crate::inject::{Lengths, inject};
use crate::timer::Timer;

const MAX_BODY_BYTES: usize = 32 << 20;

/// State of a layer above the server's endpoints, which injects faults and adds metrics.
struct Replica {
    engine: Arc<Engine>,
    counters: Arc<Counters>,
    /// Labels that every sample on the metrics page gets.
    labels: String,
    /// Number of generation requests so far.
    requests: AtomicU64,
}

/// Starts a replica's engine, and returns the replica's endpoints when the engine is ready.
///
/// # Errors
/// The engine did not become ready.
pub(crate) async fn replica(
    config: &HttpConfig,
    engine: Arc<Engine>,
    timer: impl Timer + Send + 'static,
) -> Result<Router, SimError> {
    let counters = Arc::new(Counters::default());
    let stream = engine::spawn(engine.clone(), timer, counters.clone());
    let text = engine.vocabulary.text.clone();
    let router = router_over(server_config(config, &engine), text, stream).await?;
    let replica = Arc::new(Replica {
        engine,
        counters,
        labels: format!(
            "model_name=\"{}\",engine=\"0\"",
            escaped(&config.served_model_name)
        ),
        requests: AtomicU64::new(0),
    });
    Ok(router.layer(from_fn_with_state(replica, layer)))
}

fn server_config(config: &HttpConfig, engine: &Engine) -> Config {
    Config {
        host: config.host.clone(),
        port: config.port,
        served_model_names: vec![config.served_model_name.clone()],
        model_path: config.served_model_name.clone().into(),
        chat_template: None,
        api_keys: Vec::new(),
        uds: None,
        tls: None,
        metrics_port: None,
        api_key_file: None,
        ui: true,
        access_log: false,
        notify_socket: None,
        otlp_traces_endpoint: None,
        allowed_origins: Vec::new(),
        admin_api_key: None,
        allow_special_tokens: false,
        skip_tokenizer_init: false,
        trust_request_chat_template: false,
        job_command: Vec::new(),
        tool_call_parser: None,
        reasoning_parser: None,
        vocab_size: None,
        // Answers then depend on nothing but the request and the engine's seed.
        generation_defaults: GenerationDefaults {
            seed: Some(0),
            ..GenerationDefaults::default()
        },
        engine: EngineProcess {
            argv: None,
            input: String::new(),
            socket_dir: None,
            runtime_dir: None,
        },
        max_queue: engine.profile.max_queue as usize,
        max_queue_wait_s: None,
        limits: Limits {
            max_body_bytes: Some(MAX_BODY_BYTES),
            ..Limits::default()
        },
        drain_timeout_s: 0.0,
        stall_timeout_s: 1.0,
        ranks: 1,
        max_model_len: None,
        version: config.version.clone(),
        log: LogSettings::default(),
        worker_threads: 1,
    }
}

/// Draws a fault for each generation request, and adds the engine's counters to the metrics page.
async fn layer(
    State(replica): State<Arc<Replica>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let lengths = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            return with_counters(next.run(request).await, &replica).await;
        }
        (&Method::POST, "/v1/completions") => Lengths::Completions,
        (&Method::POST, "/v1/chat/completions") if replica.engine.lengths.is_some() => {
            Lengths::Drawn
        }
        (&Method::POST, "/v1/chat/completions") => Lengths::Chat,
        _ => return next.run(request).await,
    };
    let number = replica.requests.fetch_add(1, Ordering::Relaxed) + 1;
    match replica.engine.faults.pick(number) {
        Some(fault) => inject(fault, lengths, request, next).await,
        None => next.run(request).await,
    }
}

async fn with_counters(response: Response, replica: &Replica) -> Response {
    let (mut parts, body) = response.into_parts();
    let page = body.collect().await.map(|body| body.to_bytes());
    let own = replica.counters.page(&replica.labels);
    parts.headers.remove(header::CONTENT_LENGTH);
    let page = [page.unwrap_or_default().as_ref(), own.as_bytes()].concat();
    Response::from_parts(parts, Body::from(page))
}
