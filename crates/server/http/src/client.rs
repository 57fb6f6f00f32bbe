//! HTTP client with a connection pool, for servers that the operator has configured.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::header::{AUTHORIZATION, HeaderValue};
use axum::http::{Request, Response};
use http_body_util::Full;
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

use crate::reuse::{TrackedConnector, is_stale};

/// Idle connections kept per server, and their keep-alive time-out. It is below the 5 s of common
/// servers (uvicorn, cpp-httplib), so this end closes first.
const MAX_IDLE: usize = 1024;
const IDLE: Duration = Duration::from_secs(4);
/// A pooled connection that fails within this time after a request is assumed to have been closed
/// by the server before it read the request. After a later failure, the server may have received
/// the request.
const STALE: Duration = Duration::from_secs(2);

type Connections = Pool<TrackedConnector<HttpsConnector<HttpConnector>>, Full<Bytes>>;

/// A client; clones share the connection pool.
///
/// Race: the server may close a pooled connection just as a request is written to it. If a pooled
/// connection ends before the first byte of a response, [`Client::send`] retries once on a new
/// connection; bodies are in memory, so they can be sent again. The server may nevertheless have
/// read the request, so a request that is not idempotent needs [`Client::send_once`].
#[derive(Debug, Clone)]
pub struct Client {
    kept: Connections,
    /// Connections that serve one request each, without keep-alive.
    new: Connections,
    sent_again: Arc<AtomicU64>,
    /// Default `Authorization` of requests without one.
    authorization: Option<HeaderValue>,
}

/// Reason why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No part of the request reached the server.
    #[error("no connection: {0}")]
    Connect(String),
    /// Connection refused: no process listens at the address, so the server's process has ended.
    #[error("no connection: {0}")]
    Refused(String),
    /// The request may have reached the server.
    #[error("no answer: {0}")]
    Broken(String),
}

/// TLS settings: trusted certificate authorities and the client's certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Trust {
    /// PEM; `None`: the platform's authorities.
    pub authorities: Option<String>,
    pub identity: Option<Identity>,
}

/// The client's certificate chain (leaf first) and private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    pub chain: String,
    pub key: String,
}

/// Omits the private key.
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
    /// A client for HTTP/1.1, plain or over TLS, with the platform's certificate authorities.
    ///
    /// # Errors
    /// The platform's certificate authorities cannot be read.
    pub fn new(connect_timeout: Duration) -> std::io::Result<Self> {
        let builder = HttpsConnectorBuilder::new().with_native_roots()?;
        Ok(Self::connecting(builder, connect_timeout))
    }

    /// Like [`Client::new`], with other authorities or a client certificate.
    ///
    /// # Errors
    /// A text that names the invalid part.
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
        let pool = |idle| {
            Pool::builder(TokioExecutor::new())
                .pool_idle_timeout(IDLE)
                .pool_max_idle_per_host(idle)
                .pool_timer(TokioTimer::new())
                .build(TrackedConnector(https.clone()))
        };
        Self {
            kept: pool(MAX_IDLE),
            new: pool(0),
            sent_again: Arc::default(),
            authorization: None,
        }
    }

    /// A client with the same pool that adds `authorization` to requests without one. Use it only
    /// for servers that may see the credential.
    pub fn authorized(&self, authorization: Option<HeaderValue>) -> Self {
        Self {
            authorization,
            ..self.clone()
        }
    }

    /// Sends a request with an absolute URI; completes with the response header.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Incoming>, ClientError> {
        let request = self.signed(request);
        let (again, sent) = (request.clone(), Instant::now());
        match self.kept.request(request.map(Full::new)).await {
            Err(error) if is_stale(&error) && sent.elapsed() < STALE => {
                self.sent_again.fetch_add(1, Ordering::Relaxed);
                let answer = self.new.request(again.map(Full::new)).await;
                // the first attempt may have reached the server
                answer.map_err(|error| ClientError::Broken(innermost(&error).to_string()))
            }
            answer => answer.map_err(|error| trouble(&error)),
        }
    }

    /// Sends a request at most once, on a new connection, which avoids the race with the server's
    /// idle close.
    ///
    /// # Errors
    /// [`ClientError`]
    pub async fn send_once(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<Incoming>, ClientError> {
        let answer = self.new.request(self.signed(request).map(Full::new)).await;
        answer.map_err(|error| trouble(&error))
    }

    fn signed(&self, mut request: Request<Bytes>) -> Request<Bytes> {
        if let Some(own) = &self.authorization {
            let headers = request.headers_mut();
            headers.entry(AUTHORIZATION).or_insert_with(|| own.clone());
        }
        request
    }

    /// Number of retries after a pooled connection had ended.
    pub fn sent_again(&self) -> u64 {
        self.sent_again.load(Ordering::Relaxed)
    }
}

fn trouble(error: &Error) -> ClientError {
    let cause = innermost(error);
    let io = cause.downcast_ref::<std::io::Error>();
    let refused = io.is_some_and(|io| io.kind() == ErrorKind::ConnectionRefused);
    let reason = cause.to_string();
    match error.is_connect() {
        true if refused => ClientError::Refused(reason),
        true => ClientError::Connect(reason),
        false => ClientError::Broken(reason),
    }
}

/// The root cause, because the outer errors are only "client error".
fn innermost(error: &Error) -> &(dyn std::error::Error + 'static) {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

    /// Reads a request with its body; `None` at the end of the connection.
    async fn request(stream: &mut TcpStream) -> Option<String> {
        let mut read = Vec::new();
        loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.split("content-length: ").nth(1);
                let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
                if body.len() >= length.unwrap_or(0usize) {
                    return Some(text);
                }
            }
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// Serves connections. For each request, `deal` gets the numbers of the connection and of the
    /// request on it: true answers the request, false ends the connection.
    async fn serving<F>(deal: F) -> (String, tokio::task::JoinHandle<()>)
    where
        F: Fn(usize, usize) -> bool + Send + Clone + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let serving = async move {
            for connection in 0.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                let deal = deal.clone();
                tokio::spawn(async move {
                    for number in 0.. {
                        if request(&mut stream).await.is_none() || !deal(connection, number) {
                            return;
                        }
                        stream.write_all(ANSWER).await.unwrap();
                    }
                });
            }
        };
        (url, tokio::spawn(serving))
    }

    fn client() -> Client {
        Client::new(Duration::from_secs(2)).unwrap()
    }

    async fn ask(client: &Client, url: &str) -> Result<String, ClientError> {
        let request = Request::post(url).body(Bytes::from("question")).unwrap();
        let body = client.send(request).await?.into_body().collect().await;
        // waits until the connection is back in the pool
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(String::from_utf8_lossy(&body.unwrap().to_bytes()).into_owned())
    }

    #[tokio::test]
    async fn a_kept_connection_that_ends_with_the_request_is_replaced() {
        let (url, server) = serving(|_, number| number == 0).await;
        let client = client();
        for n in 0..6 {
            assert_eq!(ask(&client, &url).await.unwrap(), "ok", "{n}");
        }
        assert_eq!(client.sent_again(), 3);
        server.abort();
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_while_idle_is_not_used() {
        let (url, server) = serving(|connection, _| connection > 0).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closing = format!("http://{}/x", listener.local_addr().unwrap());
        let closes = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                request(&mut stream).await.unwrap();
                stream.write_all(ANSWER).await.unwrap();
            }
        });
        let client = client();
        for _ in 0..5 {
            assert_eq!(ask(&client, &closing).await.unwrap(), "ok");
        }
        assert_eq!(client.sent_again(), 0);
        // a new connection that ends without an answer is the server's fault, so there is no retry
        assert!(matches!(
            ask(&client, &url).await,
            Err(ClientError::Broken(_))
        ));
        closes.abort();
        server.abort();
    }

    #[tokio::test]
    async fn a_server_that_ends_the_new_connection_too_has_failed() {
        let (url, server) = serving(|connection, number| connection == 0 && number == 0).await;
        let client = client();
        ask(&client, &url).await.unwrap();
        assert!(matches!(
            ask(&client, &url).await,
            Err(ClientError::Broken(_))
        ));
        assert_eq!(client.sent_again(), 1);
        server.abort();
    }

    /// A request after which the server has ended may have reached it, although nothing listens any
    /// more.
    #[tokio::test]
    async fn a_server_that_is_gone_after_the_first_try_had_the_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            request(&mut stream).await.unwrap();
            stream.write_all(ANSWER).await.unwrap();
            request(&mut stream).await.unwrap();
            drop(listener);
        });
        let client = client();
        ask(&client, &url).await.unwrap();
        let second = ask(&client, &url).await;
        assert!(matches!(second, Err(ClientError::Broken(_))), "{second:?}");
        assert_eq!(client.sent_again(), 1);
        server.await.unwrap();
        let third = ask(&client, &url).await;
        assert!(matches!(third, Err(ClientError::Refused(_))), "{third:?}");
    }

    #[tokio::test]
    async fn what_must_not_happen_twice_goes_on_a_new_connection() {
        let (url, server) = serving(|_, number| number == 0).await;
        let client = client();
        for n in 0..4 {
            ask(&client, &url).await.unwrap();
            let request = Request::post(&url).body(Bytes::from("question")).unwrap();
            let answer = client.send_once(request).await.unwrap();
            assert_eq!(answer.status(), 200, "{n}");
        }
        let (url, broken) = serving(|_, _| false).await;
        let request = Request::post(&url).body(Bytes::from("question")).unwrap();
        let answer = client.send_once(request).await;
        assert!(matches!(answer, Err(ClientError::Broken(_))));
        server.abort();
        broken.abort();
    }

    /// An answer that has begun shows that the server got the request, so the client does not
    /// retry.
    #[tokio::test]
    async fn an_answer_that_began_is_not_asked_for_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            request(&mut stream).await.unwrap();
            stream.write_all(ANSWER).await.unwrap();
            request(&mut stream).await.unwrap();
            stream.write_all(b"HTTP/1.1 200").await.unwrap();
        });
        let client = client();
        ask(&client, &url).await.unwrap();
        assert!(matches!(
            ask(&client, &url).await,
            Err(ClientError::Broken(_))
        ));
        assert_eq!(client.sent_again(), 0);
        server.await.unwrap();
    }
}
