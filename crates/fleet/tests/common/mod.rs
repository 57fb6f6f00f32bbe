#![allow(dead_code, clippy::unwrap_used)]
//! Replicas in this process: small HTTP servers on the loopback interface that answer what a test
//! tells them to.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use penstock_fleet::{Backend, Fleet, Settings, Source};
use penstock_http::Client;
use penstock_routing::{Condition, Replica};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What a replica answers on one path.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Status(u16),
    Page(Vec<u8>),
    /// Never.
    Hang,
}

#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) ready: Answer,
    pub(crate) health: Answer,
    pub(crate) metrics: Answer,
    pub(crate) models: Answer,
}

/// A server; it ends with the value.
pub(crate) struct Fake {
    pub(crate) url: String,
    answers: Arc<Mutex<Answers>>,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fake {
    /// Healthy, idle, with one model.
    pub(crate) async fn start() -> Self {
        Self::listen(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// Again where another one has ended.
    pub(crate) async fn start_at(url: &str) -> Self {
        let address = url.strip_prefix("http://").unwrap();
        for _ in 0..200 {
            if let Ok(listener) = TcpListener::bind(address).await {
                return Self::listen(listener);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{address} is in use");
    }

    fn listen(listener: TcpListener) -> Self {
        let answers = Arc::new(Mutex::new(Answers {
            ready: Answer::Status(404),
            health: Answer::Status(200),
            metrics: Answer::Page(page(0, 0).into()),
            models: Answer::Page(br#"{"data": [{"id": "tiny"}]}"#.to_vec()),
        }));
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(answers.clone());
        let served = async move { axum::serve(listener, router).await.unwrap() };
        let task = tokio::spawn(served);
        Self { url, answers, task }
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers.lock().unwrap());
    }
}

async fn answer(State(answers): State<Arc<Mutex<Answers>>>, uri: Uri) -> Response {
    let answer = {
        let answers = answers.lock().unwrap();
        match uri.path() {
            "/ready" => answers.ready.clone(),
            "/health" => answers.health.clone(),
            "/metrics" => answers.metrics.clone(),
            "/v1/models" => answers.models.clone(),
            _ => Answer::Status(404),
        }
    };
    match answer {
        Answer::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
        Answer::Page(page) => page.into_response(),
        Answer::Hang => std::future::pending().await,
    }
}

/// A metrics page with so many requests.
pub(crate) fn page(waiting: u32, running: u32) -> String {
    format!(
        "vllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n\
         vllm:num_requests_running{{engine=\"0\"}} {running}\n\
         vllm:kv_cache_usage_perc{{engine=\"0\"}} 0.5\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1000\"}} 1\n",
    )
}

/// Everything is asked every 10 ms, and nothing is slow to start.
pub(crate) fn quick() -> Settings {
    let text = r#"{
        "health": {"period_s": 0.01, "timeout_s": 0.2},
        "metrics": {"period_s": 0.01, "timeout_s": 0.2, "stale_s": 0.3},
        "slow_start_s": 0, "models_period_s": 0.1, "discovery_period_s": 0.01
    }"#;
    serde_json::from_str(text).unwrap()
}

pub(crate) fn client() -> Client {
    Client::new(Duration::from_secs(1)).unwrap()
}

/// A fleet of these servers, checked.
pub(crate) async fn fleet(fakes: &[Fake], settings: Settings) -> Fleet {
    let backends = fakes.iter().map(|fake| Backend::new(&fake.url)).collect();
    let fleet = Fleet::start(Source::Static(backends), settings, client()).unwrap();
    fleet.ready(Duration::from_secs(10)).await;
    fleet
}

pub(crate) async fn fakes(count: usize) -> Vec<Fake> {
    let mut fakes = Vec::new();
    for _ in 0..count {
        fakes.push(Fake::start().await);
    }
    fakes
}

/// Waits until the replicas are so.
pub(crate) async fn until(fleet: &Fleet, so: impl Fn(&[Replica]) -> bool) {
    let began = Instant::now();
    loop {
        let view = fleet.view();
        if so(&view.replicas) {
            return;
        }
        let replicas = &view.replicas;
        assert!(began.elapsed() < Duration::from_secs(20), "{replicas:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn ready(replica: &Replica) -> bool {
    replica.condition == Condition::Ready
}
