//! The arrival of a request.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::Request;
use penstock_http::Caller;

/// When a client's request came in, and whose key it carried, where that has a name.
#[derive(Clone)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) caller: Option<Arc<Caller>>,
}

impl Arrival {
    pub(crate) fn of(request: &Request<Body>) -> Self {
        Self {
            at: Instant::now(),
            caller: request.extensions().get::<Arc<Caller>>().cloned(),
        }
    }
}
