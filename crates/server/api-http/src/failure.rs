//! Errors as HTTP responses.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use penstock_api_types::ApiError;
use penstock_http::{BodyError, one_line};
use tracing::{info, warn};

/// An API error that a handler returns.
#[derive(Debug)]
pub struct Failure(pub ApiError);

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<BodyError> for Failure {
    fn from(error: BodyError) -> Self {
        Self(match error {
            BodyError::TooLarge { limit } => ApiError::body_too_large(limit),
            BodyError::Timeout { seconds } => ApiError::request_timeout(seconds),
            BodyError::Busy => ApiError::bodies_full(1),
            BodyError::Encoded => ApiError::encoded_body(),
            BodyError::EndedEarly => ApiError::bad_request("The request body ended early."),
        })
    }
}

/// Attaches the error to the response as an extension, for the log and for other protocols'
/// formats.
impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status =
            StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json(self.0.to_json());
        *response.status_mut() = status;
        if let Some(seconds) = self.0.retry_after_s {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(self.0);
        response
    }
}

/// Maximum number of logged characters of a message, which may quote client input.
const MOST_LOGGED: usize = 200;

/// Logs a rejected request. The parameters become fields of a JSON log line. `trace_id` is from the
/// client.
///
/// The level shows who should act: a warning is for the operator (server error, no capacity,
/// rejected key), an info for the client.
pub fn log_refusal(id: &str, trace_id: Option<&str>, method: &str, path: &str, error: &ApiError) {
    let (status, text) = (error.status, summary(error));
    macro_rules! refused {
        ($level:ident) => {
            $level!(
                request_id = id,
                method,
                path,
                status,
                error = error.code.unwrap_or(error.kind),
                trace_id,
                "refused {id}: {method} {path} {status} {text}"
            )
        };
    }
    match concerns_operator(status) {
        true => refused!(warn),
        false => refused!(info),
    }
}

fn concerns_operator(status: u16) -> bool {
    matches!(status, 401 | 403 | 429 | 500..)
}

/// The error in one line: code, parameter and the beginning of the message.
fn summary(error: &ApiError) -> String {
    let param = error.param.as_ref();
    let param = param.map_or(String::new(), |param| format!(" ({param})"));
    let message: String = error.message.chars().take(MOST_LOGGED).collect();
    let (code, message) = (error.code.unwrap_or(error.kind), one_line(&message));
    format!("{code}{param}: {message}")
}

/// A 200 with a JSON body that is already rendered.
pub fn json(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
