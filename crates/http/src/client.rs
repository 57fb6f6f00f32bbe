//! HTTP client with a pool of connections, for gateways: requests go to servers that the operator
//! names.

use std::io::ErrorKind;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Pool, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// Connections that stay open without a request, for each server, and for how long. Less than the
/// 65 s of common servers, so that this end closes first.
const MAX_IDLE: usize = 1024;
const IDLE: Duration = Duration::from_secs(30);

/// A client; clones share its connections.
#[derive(Debug, Clone)]
pub struct Client {
    pool: Pool<HttpsConnector<HttpConnector>, Body>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing of the request has reached the server.
    #[error("no connection: {0}")]
    Connect(String),
    /// The same, because nothing listens there: the server's process has ended.
    #[error("no connection: {0}")]
    Refused(String),
    /// It may have.
    #[error("no answer: {0}")]
    Broken(String),
}

impl Client {
    /// HTTP/1.1 without and with TLS; the platform's certificate authorities.
    ///
    /// # Errors
    /// No authorities can be read.
    pub fn new(connect_timeout: Duration) -> std::io::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(connect_timeout));
        tcp.set_keepalive(Some(Duration::from_secs(60)));
        tcp.enforce_http(false);
        let https = HttpsConnectorBuilder::new()
            .with_native_roots()?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .pool_timer(TokioTimer::new())
            .build(https);
        Ok(Self { pool })
    }

    /// Sends a request with an absolute URI; ready when the answer's header is there.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Incoming>, ClientError> {
        self.pool.request(request).await.map_err(|error| {
            let cause = innermost(&error);
            let io = cause.downcast_ref::<std::io::Error>();
            let refused = io.is_some_and(|io| io.kind() == ErrorKind::ConnectionRefused);
            let reason = cause.to_string();
            match error.is_connect() {
                true if refused => ClientError::Refused(reason),
                true => ClientError::Connect(reason),
                false => ClientError::Broken(reason),
            }
        })
    }
}

/// The cause at the end of the chain: the others say "client error".
fn innermost(error: &Error) -> &(dyn std::error::Error + 'static) {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause
}
