//! The endpoint picker of a listener: it starts the gateway's processing of Envoy's requests.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, Method, StatusCode, header};
use penstock_extproc::{Head, Picker, Refusal, Room};
use penstock_http::BodyShare;

use crate::envoy::call::EnvoyCall;
use crate::envoy::inside::{Inside, Name};
use crate::gateway::Gateway;
use crate::info::models_page;
use crate::models::is_in;
use crate::pool::Pool;

/// Endpoint picker of one listener.
#[derive(Debug, Clone)]
pub(crate) struct EnvoyDoor {
    gateway: Arc<Gateway>,
    /// The only eligible pool, if configured.
    pool: Option<Arc<str>>,
}

impl EnvoyDoor {
    pub(crate) fn new(gateway: Arc<Gateway>, pool: Option<&str>) -> Self {
        Self {
            gateway,
            pool: pool.map(Arc::from),
        }
    }
}

/// Path of the list of models, which no single replica can answer in full.
const MODELS: &str = "/v1/models";

impl EnvoyDoor {
    /// The list of models, as the gateway's own proxy returns it, limited to the listener's pool if
    /// one is configured. Envoy sends this page to the client without a request to a replica.
    fn models(&self, head: &Head, name: &Name) -> Refusal {
        if let Err(error) = Inside::admit(&self.gateway, head, name.clone()) {
            return name.refusal(error);
        }
        let page = models_page(&self.gateway, self.pool.as_deref());
        let kind = HeaderValue::from_static("application/json");
        Refusal {
            status: StatusCode::OK.as_u16(),
            headers: vec![(header::CONTENT_TYPE, kind)],
            body: page.to_string().into(),
            reason: "models",
        }
    }
}

/// Share of the memory budget of request bodies that one message uses.
pub(crate) struct MessageShare(BodyShare);

impl Room for MessageShare {
    fn resize(&mut self, bytes: usize) -> bool {
        self.0.shrink(bytes);
        self.0.grow(bytes).is_ok()
    }
}

impl Picker for EnvoyDoor {
    type Call = EnvoyCall;
    type Room = MessageShare;

    fn room(&self) -> MessageShare {
        MessageShare(self.gateway.bodies().share())
    }

    fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.gateway.config.limits.body_timeout_s)
    }

    fn begin(&self, head: Head) -> Result<EnvoyCall, Refusal> {
        let name = Name::of(&head, &self.gateway);
        if name.method == Method::GET.as_str() && name.path == MODELS {
            return Err(self.models(&head, &name));
        }
        let begun = EnvoyCall::begin(&self.gateway, self.pool.clone(), head, name.clone());
        begun.map_err(|error| name.refusal(error))
    }

    fn ready(&self) -> bool {
        let only = self.pool.as_deref();
        let pools = self.gateway.models.pools();
        let takes = |pool: &Arc<Pool>| is_in(pool, only) && pool.has_replica();
        !self.gateway.draining() && pools.iter().any(takes)
    }
}
