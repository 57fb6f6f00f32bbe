//! A server with a scripted engine.

use std::net::SocketAddr;
use std::time::Duration;

use penstock_engine_client::testing::{Action, FakeEngine, Script, tokens};
use penstock_server::{Config, Server};
use penstock_wire::{Add, Finish, Output};
use serde_json::{Value, json};

use crate::client::{Reply, exchange, request};

pub(crate) struct Door {
    pub(crate) server: Server,
    pub(crate) fake: FakeEngine,
    pub(crate) address: SocketAddr,
}

impl Door {
    /// A server whose engine answers by a script.
    pub(crate) async fn open(answer: impl Fn(&Add) -> Vec<Action> + Send + Sync + 'static) -> Self {
        Self::open_with(json!({}), Script::new(answer)).await
    }

    /// A server whose engine answers every request with these bytes as tokens.
    pub(crate) async fn saying(text: &'static str) -> Self {
        Self::open(move |_| tokens(&bytes_as_tokens(text), Duration::ZERO)).await
    }

    /// `patch` replaces members of the configuration.
    pub(crate) async fn open_with(patch: Value, script: Script) -> Self {
        let server = Server::start(config(patch)).await.expect("a server");
        let fake = FakeEngine::connect(server.engine_socket(), script).await;
        server.ready().await.expect("a ready server");
        let address = address(&server);
        Self {
            server,
            fake,
            address,
        }
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_bytes(path, body.to_string().as_bytes()).await
    }

    pub(crate) async fn post_bytes(&self, path: &str, body: &[u8]) -> Reply {
        exchange(self.address, &request("POST", path, "", body)).await
    }

    /// With a key in the Authorization header.
    pub(crate) async fn keyed(&self, method: &str, path: &str, key: &str, body: &str) -> Reply {
        let header = format!("authorization: Bearer {key}\r\n");
        let bytes = request(method, path, &header, body.as_bytes());
        exchange(self.address, &bytes).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        exchange(self.address, &request("GET", path, "", b"")).await
    }

    /// A completion that streams or not.
    pub(crate) async fn complete(&self, body: &Value) -> Reply {
        self.post("/v1/completions", body).await
    }

    pub(crate) async fn chat(&self, body: &Value) -> Reply {
        self.post("/v1/chat/completions", body).await
    }
}

/// Where a server listens on TCP.
pub(crate) fn address(server: &Server) -> SocketAddr {
    let url = server.url().strip_prefix("http://").expect("http");
    url.parse().expect("an address")
}

pub(crate) fn config(patch: Value) -> Config {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tiny-model");
    let mut config = json!({
        "host": "127.0.0.1", "port": 0, "served_model_names": ["tiny", "alias"],
        "model_path": model,
        "chat_template": null, "api_keys": [], "generation_defaults": {"temperature": 0.5,
        "top_k": 7, "top_p": null},
        "engine": {"argv": null, "socket_dir": null}, "max_queue": 4,
        "limits": {"max_body_bytes": 100_000}, "drain_timeout_s": 5.0, "stall_timeout_s": 5.0,
        "max_model_len": null, "version": "1.2.3",
    });
    for (key, value) in patch.as_object().expect("an object") {
        config[key] = value.clone();
    }
    Config::from_json(&config.to_string()).expect("a valid configuration")
}

pub(crate) fn bytes_as_tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// One output with these tokens.
pub(crate) fn send(ids: &[u32], finish: Finish) -> Action {
    Action::Send(Output {
        tokens: ids.to_vec(),
        finish,
        ..Output::default()
    })
}

/// An endless stream of `x`.
pub(crate) fn endless() -> Vec<Action> {
    (0..20_000)
        .flat_map(|_| {
            [
                Action::Wait(Duration::from_millis(2)),
                send(&[u32::from(b'x')], Finish::None),
            ]
        })
        .collect()
}
