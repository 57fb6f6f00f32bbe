//! What a request to an API server needs, as it is now.

use penstock_http::Trust;

#[derive(PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) trust: Trust,
    pub(crate) token: Option<String>,
}
