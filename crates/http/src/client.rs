//! HTTP client with a pool of connections, for gateways: requests go to servers that the operator
//! names.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper_rustls::builderstates::WantsSchemes;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Pool, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

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

/// Whom a client believes, and as whom it comes.
#[derive(Clone, PartialEq, Eq)]
pub struct Trust {
    /// PEM; `None`: the platform's.
    pub authorities: Option<String>,
    pub identity: Option<Identity>,
}

/// A client's certificates, its own first, and its key: PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    pub chain: String,
    pub key: String,
}

/// Without the key.
impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trust(..)")
    }
}

impl Trust {
    fn config(&self) -> Result<ClientConfig, String> {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.authorities {
            None => builder
                .with_native_roots()
                .map_err(|error| error.to_string())?,
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(pem, "certificate authority")? {
                    let added = roots.add(authority);
                    added.map_err(|error| format!("certificate authority: {error}"))?;
                }
                builder.with_root_certificates(roots)
            }
        };
        let Some(identity) = &self.identity else {
            return Ok(builder.with_no_client_auth());
        };
        let chain = certificates(&identity.chain, "client certificate")?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes());
        let key = key.map_err(|error| format!("client key: {error}"))?;
        let config = builder.with_client_auth_cert(chain, key);
        config.map_err(|error| format!("client certificate: {error}"))
    }
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("{what}: {error}"))?;
    match found.is_empty() {
        true => Err(format!("{what}: no certificate in PEM")),
        false => Ok(found),
    }
}

impl Client {
    /// HTTP/1.1 without and with TLS; the platform's certificate authorities.
    ///
    /// # Errors
    /// No authorities can be read.
    pub fn new(connect_timeout: Duration) -> std::io::Result<Self> {
        let builder = HttpsConnectorBuilder::new().with_native_roots()?;
        Ok(Self::connecting(builder, connect_timeout))
    }

    /// The same with other authorities, or a certificate of its own.
    ///
    /// # Errors
    /// A text that says which of them is wrong.
    pub fn trusting(connect_timeout: Duration, trust: &Trust) -> Result<Self, String> {
        let builder = HttpsConnectorBuilder::new().with_tls_config(trust.config()?);
        Ok(Self::connecting(builder, connect_timeout))
    }

    fn connecting(builder: HttpsConnectorBuilder<WantsSchemes>, connect_timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(connect_timeout));
        tcp.set_keepalive(Some(Duration::from_secs(60)));
        tcp.enforce_http(false);
        let https = builder.https_or_http().enable_http1().wrap_connector(tcp);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(MAX_IDLE)
            .pool_timer(TokioTimer::new())
            .build(https);
        Self { pool }
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
