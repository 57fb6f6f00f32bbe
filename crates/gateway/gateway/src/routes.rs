//! The HTTP routes of the gateway.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodFilter, any, get, on, post};
use penstock_api_http::{guarded, method_not_allowed, no_route};

use crate::exact::EXPLAIN;
use crate::explain::explain;
use crate::forward::forward;
use crate::gateway::Gateway;
use crate::info;
use crate::paths::TEXT;
use crate::replicas::replicas;

/// All other endpoints of replicas, such as audio, images, files and batches.
const REST: &str = "/v1/{*path}";

/// A router of all endpoints. The endpoints are also served below the configured root path.
pub(crate) fn router(gateway: Arc<Gateway>) -> Router {
    let root = gateway.config.root_path.clone();
    let router = endpoints(gateway.clone(), "/");
    match root {
        Some(root) => router.nest(&root, endpoints(gateway, &root)),
        None => router,
    }
}

/// The endpoints below `root`, the path at which this router is nested.
fn endpoints(gateway: Arc<Gateway>, root: &str) -> Router {
    let root: Arc<str> = root.into();
    let index = async move |gateway: State<Arc<Gateway>>, headers: HeaderMap| {
        info::index(gateway, headers, &root).await
    };
    let mut router = Router::new().merge(penstock_page::icon_routes());
    if gateway.config.ui {
        router = router.merge(penstock_page::file_routes());
    }
    router = router
        .route("/v1/models", get(info::models))
        .route("/v1/models/{*id}", get(info::model))
        .route("/", get(index))
        .route("/health", get(info::health))
        .route("/ping", any(info::health))
        .route("/ready", get(info::ready))
        .route("/version", get(info::version))
        .route("/openapi.json", get(info::openapi))
        .route(EXPLAIN, post(explain))
        .route("/metrics", get(info::metrics))
        .route("/replicas", get(replicas));
    for path in TEXT {
        router = router.route(path, post(forward));
    }
    let reads = MethodFilter::GET.or(MethodFilter::DELETE);
    let writes = MethodFilter::POST
        .or(MethodFilter::PUT)
        .or(MethodFilter::PATCH);
    router = router.route(REST, on(reads.or(writes), forward));
    router
        .fallback(no_route)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(gateway.guard.clone(), guarded))
        .with_state(gateway)
}
