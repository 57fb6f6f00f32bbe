//! The proxy between real connections: replicas of a few lines behind it, a client before it.
#![allow(clippy::unwrap_used)]

mod continued;
mod endings;
mod endpoints;
mod exact;
mod failover;
mod faults;
mod flow;
mod hedge;
mod http2;
mod limits;
mod mirror;
mod policy;
mod raw;
mod relay;
mod reload;
mod replica;
mod replicas;
mod stale;
mod traces;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use penstock_gateway::{Config, Gateway, Serving};
use penstock_http::Client;
use serde_json::{Value, json};

use crate::replica::Replica;

/// What takes longer has come to a standstill.
const DEADLINE: Duration = Duration::from_secs(300);

/// A gateway that listens, and a client.
pub(crate) struct Door {
    serving: Serving,
    client: Client,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }
}

impl Door {
    /// Before one pool of `replicas`, with further settings.
    async fn open(replicas: &[&Replica], more: Value) -> Self {
        let backends: Vec<Value> = replicas.iter().map(|one| json!({"url": one.url})).collect();
        let fleet = json!({"slow_start_s": 0});
        let pool = json!({"name": "p", "source": {"static": backends}, "fleet": fleet});
        let mut config = json!({"pools": [pool]});
        merge(&mut config, more);
        Self::with(config).await
    }

    /// With these settings and defaults for a test.
    async fn with(more: Value) -> Self {
        let mut config = json!({
            "host": "127.0.0.1", "port": 0, "version": "test", "drain_timeout_s": 5,
            "connect_timeout_s": 2,
        });
        merge(&mut config, more);
        let config = Config::from_json(&config.to_string()).unwrap();
        let serving = Serving::start(config).await.unwrap();
        serving.gateway.ready(Duration::from_secs(5)).await;
        Self {
            serving,
            client: Client::new(Duration::from_secs(2)).unwrap(),
        }
    }

    fn gateway(&self) -> Arc<Gateway> {
        self.serving.gateway.clone()
    }

    /// The header of an answer, with the body still to come.
    async fn begin(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> axum::http::Response<hyper::body::Incoming> {
        let mut request = Request::post(format!("{}{path}", self.serving.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).unwrap();
        tokio::time::timeout(DEADLINE, self.client.send(request))
            .await
            .unwrap()
            .unwrap()
    }

    async fn send(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let (parts, body) = self.begin(path, headers, body).await.into_parts();
        let body = tokio::time::timeout(DEADLINE, body.collect())
            .await
            .unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.unwrap().to_bytes(),
        }
    }

    async fn ask(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Answer {
        let url = format!("{}{path}", self.serving.url);
        let request = Request::builder().method(method).uri(url);
        let request = request.body(body.into()).unwrap();
        let (parts, body) = self.client.send(request).await.unwrap().into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    async fn post(&self, body: &Value) -> Answer {
        self.send("/v1/chat/completions", &[], body.to_string())
            .await
    }

    async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::get(format!("{}{path}", self.serving.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Bytes::new()).unwrap();
        let (parts, body) = self.client.send(request).await.unwrap().into_parts();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }
}

/// Members of `more` replace those of `value`.
fn merge(value: &mut Value, more: Value) {
    let more = more.as_object().unwrap().clone();
    value.as_object_mut().unwrap().extend(more);
}

/// Waits until `holds`.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < DEADLINE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until what a request shows `holds`.
async fn until_shown(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < DEADLINE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A chat of one message.
fn chat(text: &str) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}]})
}
