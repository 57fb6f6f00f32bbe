//! What all requests to one replica share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use penstock_openai::ApiError;
use tokio::sync::mpsc::UnboundedSender;

use super::chunks::{Endpoint, Identity};
use super::metrics::Counters;
use super::seat::Seat;
use super::{answering, info};
use crate::batching::Ask;
use crate::driver::{Clock, Command, Order};
use crate::faults::Faults;
use crate::profile::Profile;
use crate::random;
use crate::vocabulary::Vocabulary;

pub(crate) struct App {
    pub(crate) model: String,
    pub(crate) version: String,
    pub(crate) profile: Profile,
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) faults: Faults,
    /// Whether answers end by a distribution of lengths.
    pub(crate) draws_lengths: bool,
    pub(crate) commands: UnboundedSender<Command<Seat>>,
    pub(crate) clock: Clock,
    pub(crate) requests: AtomicU64,
}

impl App {
    /// Number of a new request, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.requests.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn submit(self: &Arc<Self>, id: u64, ask: Ask, seat: Seat) -> Departure {
        let ask = Box::new(ask);
        self.send(Order::Add { id, ask, seat });
        Departure {
            app: self.clone(),
            id,
        }
    }

    fn send(&self, order: Order<Seat>) {
        let at = self.clock.now();
        // Without a driver the process is ending.
        let _ = self.commands.send(Command { at, order });
    }

    /// 404 unless `asked` is absent or served.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(name) if name != self.model => Err(ApiError::model_not_found(
                name,
                std::slice::from_ref(&self.model),
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn identity(&self, endpoint: Endpoint, number: u64) -> Identity {
        let prefix = match endpoint {
            Endpoint::Completions => "cmpl",
            Endpoint::Chat => "chatcmpl",
        };
        Identity {
            id: format!("{prefix}-{:016x}{number:016x}", random::mix(number)),
            created: unix_now(),
            model: self.model.clone(),
        }
    }
}

/// Cancels the request when it is dropped. The engine ignores what it has ended already.
pub(crate) struct Departure {
    app: Arc<App>,
    id: u64,
}

impl Drop for Departure {
    fn drop(&mut self) {
        self.app.send(Order::Cancel(vec![self.id]));
    }
}

pub(crate) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/completions", post(answering::completions))
        .route("/v1/chat/completions", post(answering::chat))
        .route("/v1/models", get(info::models))
        .route("/tokenize", post(info::tokenize))
        .route("/detokenize", post(info::detokenize))
        .route("/health", get(info::health))
        .route("/ready", get(info::health))
        .route("/version", get(info::version))
        .route("/metrics", get(info::metrics))
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app)
}

async fn no_route(uri: Uri) -> Failure {
    Failure(ApiError::no_route(uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Failure {
    Failure(ApiError::method_not_allowed(method.as_str(), uri.path()))
}

/// What a handler returns instead of a response.
pub(crate) struct Failure(pub(crate) ApiError);

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = json(self.0.to_json());
        *response.status_mut() =
            StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(seconds) = self.0.retry_after_s {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A 200 with a JSON body that is already rendered.
pub(crate) fn json(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
