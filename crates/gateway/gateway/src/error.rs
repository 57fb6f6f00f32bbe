//! Errors at start-up and at a reload.

use penstock_fleet::FleetError;
use penstock_http::bind_remedy;
use penstock_routing::ProfileError;

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(String),
    #[error("pool {pool:?}: {source}")]
    Profile { pool: String, source: ProfileError },
    #[error("pool {pool:?}: {source}")]
    Fleet { pool: String, source: FleetError },
    #[error("cannot listen on {place}: {source}; {}", bind_remedy(.source))]
    Bind {
        place: String,
        source: std::io::Error,
    },
    #[error("{0}")]
    System(#[from] std::io::Error),
}
