//! HTTP client of a Kubernetes API server.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use axum::http::{self, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use penstock_http::{Client, Trust, shown_url};
use url::Url;

use crate::api_error::ApiError;
use crate::cluster::Cluster;
use crate::credentials::Credentials;
use crate::event::refused;
use crate::plugin::CredentialCache;

const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Time-out of [`Api::request`], excluding the wait for credentials.
const REQUEST_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum size in bytes of a response body, such as a page of a list, and of the body of an error.
const BODY_BYTES: usize = 256 << 20;
const REFUSAL_BYTES: usize = 64 << 10;

/// A client of one API server. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Api {
    cluster: Arc<Cluster>,
    /// The HTTP client. It is rebuilt when the certificates change.
    client: Arc<Mutex<Option<(Trust, Client)>>>,
    issued: Arc<CredentialCache>,
}

impl Api {
    pub fn new(cluster: Cluster) -> Self {
        Self {
            cluster: Arc::new(cluster),
            client: Arc::default(),
            issued: Arc::default(),
        }
    }

    /// Sends a request, which must be idempotent because it may be retried. Returns the status,
    /// which may be an error status, and the body. `target` is path and query below the server's
    /// base path, such as `/api/v1/pods?limit=5`.
    ///
    /// # Errors
    /// [`ApiError::Credentials`]; [`ApiError::Unreachable`] if there is no complete response in 60
    /// s.
    pub async fn request(
        &self,
        method: &str,
        target: &str,
        content_type: &str,
        body: &[u8],
    ) -> Result<(u16, Bytes), ApiError> {
        let server = self.cluster.server.trim_end_matches('/');
        let request = Request::builder()
            .method(method)
            .uri(format!("{server}{target}"))
            .header(ACCEPT, "*/*")
            .header(CONTENT_TYPE, content_type)
            .body(Bytes::copy_from_slice(body));
        let read = async |answer: Response<_>| Ok((answer.status().as_u16(), whole(answer).await?));
        self.exchange(request, REQUEST_PATIENCE, read).await
    }

    /// URL of the server, for the log.
    pub(crate) fn server(&self) -> String {
        shown_url(&self.cluster.server)
    }

    /// Builds a URL from path segments below the server's base path, and a query.
    pub(crate) fn url(&self, segments: &[&str], query: &[(&str, String)]) -> Result<Url, ApiError> {
        let server = &self.cluster.server;
        let shown = shown_url(server);
        let wrong = |reason: String| ApiError::Credentials(format!("server {shown:?}: {reason}"));
        let mut url = Url::parse(server).map_err(|error| wrong(error.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong("no http or https URL".to_owned()));
        }
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url.query_pairs_mut().extend_pairs(query);
        Ok(url)
    }

    /// `GET`s a URL with the current credentials. Returns when the response's header has arrived,
    /// before its body.
    ///
    /// # Errors
    /// [`ApiError`], also for a status other than 200.
    pub(crate) async fn open(
        &self,
        url: &Url,
        patience: Duration,
    ) -> Result<Response<Incoming>, ApiError> {
        let request = Request::get(url.as_str())
            .header(ACCEPT, "application/json")
            .body(Bytes::new());
        let check = async |answer: Response<_>| match answer.status() {
            StatusCode::OK => Ok(answer),
            status => Err(refusal(status.as_u16(), answer).await),
        };
        self.exchange(request, patience, check).await
    }

    /// `GET`s a URL and returns the whole body.
    pub(crate) async fn get(&self, url: &Url, patience: Duration) -> Result<Bytes, ApiError> {
        let body = async { whole(self.open(url, patience).await?).await };
        within(patience, body).await
    }

    /// Sends a request with the current credentials; `read` reads the response.
    async fn exchange<T>(
        &self,
        request: http::Result<Request<Bytes>>,
        patience: Duration,
        read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let mut request = request.map_err(unreachable)?;
        let credentials = self.credentials().await.map_err(ApiError::Credentials)?;
        if let Some(token) = &credentials.token {
            let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
                ApiError::Credentials("the token is not a valid header value".to_owned())
            })?;
            bearer.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        let client = self.client(credentials)?;
        let answer = async {
            let answer = client.send(request).await.map_err(unreachable)?;
            if answer.status() == StatusCode::UNAUTHORIZED {
                self.issued.forget().await;
            }
            read(answer).await
        };
        within(patience, answer).await
    }

    async fn credentials(&self) -> Result<Credentials, String> {
        let mut credentials = self.cluster.read()?;
        if let Some(plugin) = &self.cluster.exec {
            self.issued.add_to(&mut credentials, plugin).await?;
        }
        Ok(credentials)
    }

    fn client(&self, credentials: Credentials) -> Result<Client, ApiError> {
        let mut made = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((trust, client)) = &*made
            && *trust == credentials.trust
        {
            return Ok(client.clone());
        }
        let client = Client::trusting(CONNECT_PATIENCE, &credentials.trust);
        let client = client.map_err(ApiError::Credentials)?;
        *made = Some((credentials.trust, client.clone()));
        Ok(client)
    }
}

async fn whole(answer: Response<Incoming>) -> Result<Bytes, ApiError> {
    let body = Limited::new(answer.into_body(), BODY_BYTES).collect().await;
    Ok(body.map_err(unreachable)?.to_bytes())
}

async fn refusal(status: u16, answer: Response<Incoming>) -> ApiError {
    let body = Limited::new(answer.into_body(), REFUSAL_BYTES).collect();
    let body = body.await.map(|body| body.to_bytes()).unwrap_or_default();
    refused(status, &body)
}

async fn within<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let late = |_| unreachable(format!("no answer in {} s", patience.as_secs_f64()));
    tokio::time::timeout(patience, answer).await.map_err(late)?
}

fn unreachable(error: impl Display) -> ApiError {
    ApiError::Unreachable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(server: &str, query: &[(&str, String)]) -> Result<String, String> {
        let api = Api::new(Cluster {
            server: server.to_owned(),
            ..Cluster::default()
        });
        let url = api.url(&["api", "v1", "namespaces", "a/b", "pods"], query);
        url.map(String::from).map_err(|trouble| trouble.to_string())
    }

    #[test]
    fn urls_keep_a_path_of_the_server_and_escape_what_is_given() {
        assert_eq!(
            url(
                "https://[::1]:6443",
                &[("labelSelector", "a in (b,c)".to_owned())]
            )
            .unwrap(),
            "https://[::1]:6443/api/v1/namespaces/a%2Fb/pods?labelSelector=a+in+%28b%2Cc%29"
        );
        let rancher = url("https://r/k8s/clusters/c-1/", &[]).unwrap();
        assert!(
            rancher.starts_with("https://r/k8s/clusters/c-1/api/v1/"),
            "{rancher}"
        );
        for wrong in ["r:6443", "", "unix:/run/x"] {
            assert!(url(wrong, &[]).unwrap_err().contains("server"), "{wrong}");
        }
    }
}
