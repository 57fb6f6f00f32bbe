//! HTTP client of an API server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::header::{ACCEPT, AUTHORIZATION};
use axum::http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use penstock_http::{Client, Trust, shown_url};
use url::Url;

use crate::cluster::Cluster;
use crate::credentials::Credentials;
use crate::event::refused;
use crate::plugin::CredentialCache;
use crate::watch_error::WatchError;

const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum size of an error body in bytes.
const REFUSAL_BYTES: usize = 64 << 10;

/// A client of one API server. Clones share its connections.
#[derive(Debug, Clone)]
pub struct Api {
    cluster: Arc<Cluster>,
    /// Rebuilt when the certificates change.
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

    /// For the log.
    pub(crate) fn server(&self) -> String {
        shown_url(&self.cluster.server)
    }

    /// Builds a URL from segments below the server's base path, and a query.
    pub(crate) fn url(
        &self,
        segments: &[&str],
        query: &[(&str, String)],
    ) -> Result<Url, WatchError> {
        let server = &self.cluster.server;
        let shown = shown_url(server);
        let wrong = |reason: String| WatchError::Credentials(format!("server {shown:?}: {reason}"));
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

    /// `GET`s a URL with the current credentials; returns when the response header has arrived,
    /// before the body.
    ///
    /// # Errors
    /// [`WatchError`], also for a status other than 200.
    pub(crate) async fn open(
        &self,
        url: &Url,
        patience: Duration,
    ) -> Result<Response<Incoming>, WatchError> {
        let credentials = self.credentials().await.map_err(WatchError::Credentials)?;
        let mut request = Request::get(url.as_str()).header(ACCEPT, "application/json");
        if let Some(token) = &credentials.token {
            let mut bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
                WatchError::Credentials("the token is not a valid header value".to_owned())
            })?;
            bearer.set_sensitive(true);
            request = request.header(AUTHORIZATION, bearer);
        }
        let request = request.body(Bytes::new());
        let request = request.map_err(|error| WatchError::Unreachable(error.to_string()))?;
        let sent = self.client(credentials)?;
        let answer = tokio::time::timeout(patience, async {
            let answer = sent.send(request).await;
            let answer = answer.map_err(|error| WatchError::Unreachable(error.to_string()))?;
            match answer.status() {
                StatusCode::OK => Ok(answer),
                status => Err(refusal(status.as_u16(), answer).await),
            }
        });
        let answer = answer.await.unwrap_or_else(|_| Err(late(patience)));
        if matches!(answer, Err(WatchError::Refused { status: 401, .. })) {
            self.issued.forget().await;
        }
        answer
    }

    async fn credentials(&self) -> Result<Credentials, String> {
        let mut credentials = self.cluster.read()?;
        if let Some(plugin) = &self.cluster.exec {
            self.issued.add_to(&mut credentials, plugin).await?;
        }
        Ok(credentials)
    }

    /// `GET`s a whole body of at most `most` bytes.
    pub(crate) async fn get(
        &self,
        url: &Url,
        patience: Duration,
        most: usize,
    ) -> Result<Vec<u8>, WatchError> {
        let body = async {
            let answer = self.open(url, patience).await?;
            let body = Limited::new(answer.into_body(), most).collect().await;
            let body = body.map_err(|error| WatchError::Unreachable(error.to_string()))?;
            Ok(body.to_bytes().to_vec())
        };
        let body = tokio::time::timeout(patience, body).await;
        body.unwrap_or_else(|_| Err(late(patience)))
    }

    fn client(&self, credentials: Credentials) -> Result<Client, WatchError> {
        let mut made = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((trust, client)) = &*made
            && *trust == credentials.trust
        {
            return Ok(client.clone());
        }
        let client = Client::trusting(CONNECT_PATIENCE, &credentials.trust);
        let client = client.map_err(WatchError::Credentials)?;
        *made = Some((credentials.trust, client.clone()));
        Ok(client)
    }
}

async fn refusal(status: u16, answer: Response<Incoming>) -> WatchError {
    let body = Limited::new(answer.into_body(), REFUSAL_BYTES).collect();
    let body = body.await.map(|body| body.to_bytes()).unwrap_or_default();
    refused(status, &body)
}

fn late(patience: Duration) -> WatchError {
    WatchError::Unreachable(format!("no answer in {} s", patience.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(server: &str, query: &[(&str, String)]) -> Result<String, String> {
        let api = Api::new(Cluster {
            server: server.to_owned(),
            authorities: None,
            token: None,
            certificate: None,
            key: None,
            exec: None,
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
