//! The credentials currently used for requests to an API server.

use penstock_http::Trust;

#[derive(PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) trust: Trust,
    pub(crate) token: Option<String>,
}
