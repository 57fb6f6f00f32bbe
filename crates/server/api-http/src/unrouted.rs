//! Answers where there is no endpoint.

use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Redirect, Response};
use penstock_api_types::ApiError;

use crate::Failure;

/// A path with a slash at its end is redirected to the one without, by 307: the method and the body
/// are sent again.
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

/// 405
pub async fn method_not_allowed(method: Method, uri: Uri) -> Failure {
    Failure(ApiError::method_not_allowed(method.as_str(), uri.path()))
}
