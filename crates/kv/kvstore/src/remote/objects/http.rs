//! HTTP/1.1 client for object stores, based on the client of the rest of Penstock. The default
//! client of `object_store` is several times as large as this crate.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest,
    HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
};
use tokio_rustls::rustls::ClientConfig;

/// Idle time-out of connections, shorter than a server's (at least 5 s).
const IDLE: Duration = Duration::from_secs(4);
const AGENT: &str = concat!("penstock/", env!("CARGO_PKG_VERSION"));

/// Creates clients for `object_store`: one for the store, more for its credential providers.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) tls: ClientConfig,
    /// Connect time-out.
    pub(super) connect: Duration,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let plain = options
            .get_config_value(&ClientConfigKey::AllowHttp)
            .as_deref()
            == Some("true");
        let mut tcp = Tcp::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(self.connect));
        let builder = HttpsConnectorBuilder::new().with_tls_config(self.tls.clone());
        let builder = if plain {
            builder.https_or_http()
        } else {
            builder.https_only()
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(builder.enable_http1().wrap_connector(tcp));
        Ok(HttpClient::new(Service(client)))
    }
}

#[derive(Debug)]
struct Service(Client<HttpsConnector<Tcp>, HttpRequestBody>);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        request
            .headers_mut()
            .insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let response = self.0.request(request).await.map_err(not_answered)?;
        Ok(response.map(|body| HttpResponseBody::new(body.map_err(cut_short))))
    }
}

fn not_answered(error: ClientError) -> HttpError {
    let kind = match error.is_connect() {
        true => HttpErrorKind::Connect,
        false => HttpErrorKind::Interrupted,
    };
    HttpError::new(kind, error)
}

fn cut_short(error: hyper::Error) -> HttpError {
    HttpError::new(HttpErrorKind::Interrupted, error)
}
