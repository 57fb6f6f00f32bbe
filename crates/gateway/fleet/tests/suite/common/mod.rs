#![allow(dead_code, clippy::unwrap_used)]
//! Replicas in this process: small HTTP servers on the loopback interface that answer what a test
//! tells them to.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use penstock_fleet::{Backend, Fleet, Settings, Source};
use penstock_http::Client;
use penstock_routing::{Condition, Replica};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

/// What a replica answers on one path.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Status(u16),
    Page(Vec<u8>),
    /// Never.
    Hang,
    /// What is sent from then on, until the last sender is gone.
    Feed(broadcast::Sender<String>),
}

#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) ready: Answer,
    pub(crate) health: Answer,
    pub(crate) metrics: Answer,
    pub(crate) models: Answer,
    pub(crate) stream: Answer,
    /// How often metrics and stream were asked for.
    pub(crate) scrapes: usize,
    pub(crate) streams: usize,
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
            stream: Answer::Status(404),
            scrapes: 0,
            streams: 0,
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

    pub(crate) fn scrapes(&self) -> usize {
        self.answers.lock().unwrap().scrapes
    }

    pub(crate) fn streams(&self) -> usize {
        self.answers.lock().unwrap().streams
    }

    /// Streams what is sent, to all that ask from now on.
    pub(crate) fn feed(&self) -> broadcast::Sender<String> {
        let (sender, _) = broadcast::channel(1024);
        self.set(|answers| answers.stream = Answer::Feed(sender.clone()));
        sender
    }
}

async fn answer(State(answers): State<Arc<Mutex<Answers>>>, uri: Uri) -> Response {
    let answer = {
        let mut answers = answers.lock().unwrap();
        answers.scrapes += usize::from(uri.path() == "/metrics");
        answers.streams += usize::from(uri.path() == STREAM);
        match uri.path() {
            STREAM => answers.stream.clone(),
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
        Answer::Feed(feed) => {
            let lines = unfold(feed.subscribe(), async |mut lines| {
                let line = lines.recv().await.ok()?;
                Some((Ok::<_, Infallible>(line), lines))
            });
            Body::from_stream(lines).into_response()
        }
    }
}

/// Where the load is streamed.
pub(crate) const STREAM: &str = "/metrics/stream";

/// The same page, which offers the stream.
pub(crate) fn streamed_page(waiting: u32, running: u32) -> String {
    let offer = format!("penstock:load_stream_info{{engine=\"0\",path=\"{STREAM}\"}} 1\n");
    page(waiting, running) + &offer
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
    fleet.ready(Duration::from_secs(300)).await;
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
        assert!(began.elapsed() < Duration::from_secs(300), "{replicas:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn ready(replica: &Replica) -> bool {
    replica.condition == Condition::Ready
}
