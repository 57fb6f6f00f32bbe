#![allow(clippy::unwrap_used)]
//! Pushed load: a gateway's fleet in front of the real server and a simulated engine.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::Request;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use penstock_fleet::{Backend, Fleet, Outcome, Settings, Source};
use penstock_http::{Client, Connections, Limits, Listener};
use penstock_routing::Replica;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::config::{EngineSettings, HttpConfig};
use crate::replica::replica;
use crate::timer::TokioTimer;

const STREAM: &str = "GET /metrics/stream ";
const SCRAPE: &str = "GET /metrics ";

/// A step takes 20 ms plus 5 ms per decode; at most 2 sequences run at the same time.
fn config() -> HttpConfig {
    let profile = json!({
        "max_model_len": 512, "max_num_seqs": 2, "max_num_batched_tokens": 64, "max_queue": 8,
        "block_size": 16, "num_blocks": 64, "vocab_size": 1000,
        "timing": {
            "base_us": 20_000, "decode_us": [[1, 5_000]], "prompt_us_per_token": 100,
            "decode_us_per_context_ktoken": 0, "prompt_us_per_context_ktoken": 0,
        },
    });
    let config = json!({
        "host": "127.0.0.1", "port": 0, "replicas": 1, "threads": 1, "served_model_name": "sim",
        "version": "1", "engine": {"profile": profile},
    });
    serde_json::from_value(config).unwrap()
}

/// The server, and the proxy between it and the gateway.
struct Scene {
    server: String,
    wire: Wire,
    _connections: Connections,
}

impl Scene {
    async fn new() -> Self {
        let config = config();
        let settings: EngineSettings = config.engine.clone();
        let engine = Arc::new(settings.open().unwrap());
        let router = replica(&config, engine, TokioTimer).await.unwrap();
        let listener = Listener::tcp("127.0.0.1", 0, None).await.unwrap();
        let server = listener.url().unwrap();
        let connections = Connections::accept(listener, router, Limits::default());
        let address = server.strip_prefix("http://").unwrap().parse().unwrap();
        let wire = Wire::start(address).await;
        Self {
            server,
            wire,
            _connections: connections,
        }
    }

    /// A gateway's fleet behind the proxy, which scrapes every `period_s`.
    async fn fleet(&self, period_s: f64) -> Fleet {
        let mut settings = Settings::default();
        (settings.metrics.period_s, settings.slow_start_s) = (period_s, 0.0);
        settings.metrics.stale_s = period_s.max(2.0);
        let source = Source::Static(vec![Backend::new(&self.wire.url)]);
        let fleet = Fleet::start(source, settings, client()).unwrap();
        assert!(fleet.ready(Duration::from_secs(300)).await);
        fleet
    }

    /// A streamed answer to another client, which does not pass through this gateway.
    fn request(&self, max_tokens: u32) -> impl Future<Output = Incoming> + use<> {
        let body = json!({"prompt": [1, 2, 3], "max_tokens": max_tokens, "stream": true,
            "ignore_eos": true});
        let request = Request::post(format!("{}/v1/completions", self.server))
            .header("content-type", "application/json")
            .body(Bytes::from(body.to_string()));
        async {
            let answer = client().send(request.unwrap()).await.unwrap();
            assert_eq!(answer.status(), 200);
            answer.into_body()
        }
    }
}

fn client() -> Client {
    Client::new(Duration::from_secs(5)).unwrap()
}

/// A TCP proxy that can cut load streams.
struct Wire {
    url: String,
    asked: Arc<Asked>,
    cut: watch::Sender<bool>,
}

/// Number of forwarded requests.
#[derive(Default)]
struct Asked {
    scrapes: AtomicUsize,
    streams: AtomicUsize,
}

impl Wire {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (cut, is_cut) = watch::channel(false);
        let asked = Arc::new(Asked::default());
        let count = asked.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, is_cut.clone(), count.clone()));
            }
        });
        Self { url, asked, cut }
    }

    fn scrapes(&self) -> usize {
        self.asked.scrapes.load(Ordering::Relaxed)
    }

    fn streams(&self) -> usize {
        self.asked.streams.load(Ordering::Relaxed)
    }
}

/// Forwards one connection until either end closes it, or until it carries a stream and streams are
/// cut.
async fn carry(
    client: TcpStream,
    server: SocketAddr,
    mut cut: watch::Receiver<bool>,
    asked: Arc<Asked>,
) {
    let server = TcpStream::connect(server).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let forth = async {
        let mut chunk = vec![0; 64 << 10];
        let mut streams = false;
        loop {
            let read = tokio::select! {
                read = from_client.read(&mut chunk) => read.unwrap_or(0),
                _ = cut.wait_for(|cut| *cut), if streams => return,
            };
            let asks = |path: &str| chunk[..read].starts_with(path.as_bytes());
            streams |= asks(STREAM);
            if streams && *cut.borrow() {
                return;
            }
            let count =
                |count: &AtomicUsize, asked| count.fetch_add(usize::from(asked), Ordering::Relaxed);
            count(&asked.streams, asks(STREAM));
            count(&asked.scrapes, asks(SCRAPE));
            if read == 0 || to_server.write_all(&chunk[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = forth => {}
        _ = copy(&mut from_server, &mut to_client) => {}
    }
}

async fn until(fleet: &Fleet, so: impl Fn(&Replica) -> bool) {
    in_time(async {
        while !so(&fleet.view().replicas[0]) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(300);
    tokio::time::timeout(limit, work).await.expect("in time")
}

fn load(one: &Replica) -> (f32, f32) {
    (one.waiting, one.running)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_follows_each_step_without_a_scrape() {
    let scene = Scene::new().await;
    let fleet = scene.fleet(600.0).await;
    let answers = [scene.request(400).await, scene.request(400).await];
    until(&fleet, |one| load(one) == (0.0, 2.0)).await;
    until(&fleet, |one| one.kv_use > 0.0).await;
    // A third one has to wait.
    let third = tokio::spawn(scene.request(1));
    until(&fleet, |one| load(one) == (1.0, 2.0)).await;
    // A request of this gateway is not counted twice.
    let id = fleet.view().replicas[0].id;
    let own = fleet.begin(id, 3.0, 3.0);
    assert_eq!(load(&fleet.view().replicas[0]), (2.0, 2.0));
    own.end(Outcome::ClientGone);
    drop(answers);
    in_time(third).await.unwrap().collect().await.unwrap();
    until(&fleet, |one| load(one) == (0.0, 0.0)).await;
    assert_eq!(scene.wire.scrapes(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_cut_falls_back_to_scrapes_and_comes_back() {
    let scene = Scene::new().await;
    let fleet = scene.fleet(0.05).await;
    let answer = scene.request(400).await;
    until(&fleet, |one| load(one) == (0.0, 1.0)).await;
    scene.wire.cut.send_replace(true);
    let before = scene.wire.scrapes();
    drop(answer);
    until(&fleet, |one| load(one) == (0.0, 0.0)).await;
    let answer = scene.request(400).await;
    until(&fleet, |one| load(one) == (0.0, 1.0)).await;
    assert!(scene.wire.scrapes() > before, "it cannot know otherwise");
    let before = scene.wire.streams();
    scene.wire.cut.send_replace(false);
    until(&fleet, |_| scene.wire.streams() > before).await;
    drop(answer);
    until(&fleet, |one| load(one) == (0.0, 0.0)).await;
}
