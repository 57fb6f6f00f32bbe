//! Responses for unknown paths and methods.

use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use penstock_api_types::ApiError;

use crate::Failure;

/// Redirects a path with a trailing slash to the path without, by 307, which preserves method and
/// body; otherwise 404.
pub async fn no_route(uri: Uri) -> Response {
    let path = uri.path();
    match path.trim_end_matches('/') {
        bare if bare.len() < path.len() && bare.starts_with('/') && !bare.starts_with("//") => {
            let query = uri
                .query()
                .map_or(String::new(), |query| format!("?{query}"));
            Redirect::temporary(&format!("{bare}{query}")).into_response()
        }
        _ => Failure(ApiError::no_route(path)).into_response(),
    }
}

/// Responds with 405.
pub async fn method_not_allowed(method: Method, uri: Uri) -> Failure {
    Failure(ApiError::method_not_allowed(method.as_str(), uri.path()))
}
