//! The picker of a listener.

use std::sync::Arc;

use penstock_extproc::{Head, Picker, Refusal};

use crate::envoy::call::EnvoyCall;
use crate::envoy::inside::Name;
use crate::gateway::Gateway;
use crate::models::is_in;
use crate::pool::Pool;

/// The picker of one listener.
#[derive(Debug, Clone)]
pub(crate) struct EnvoyDoor {
    gateway: Arc<Gateway>,
    /// The only pool.
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

impl Picker for EnvoyDoor {
    type Call = EnvoyCall;

    fn begin(&self, head: Head) -> Result<EnvoyCall, Refusal> {
        let name = Name::of(&head, &self.gateway);
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
