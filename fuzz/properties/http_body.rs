//! Bodies of all endpoints: parsed, or refused with a client error and a short message.

use penstock_api_types::{
    ApiError, ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, KvRequest,
    MessagesRequest, RerankRequest, ResponsesRequest, ScoreRequest, TokenizeRequest,
};
use serde_json::Value;

/// Bytes of the longest message, and of a response: JSON escapes a byte with up to six.
const LONGEST_MESSAGE: usize = 1003;
const LONGEST_BODY: usize = 8 << 10;

type Parse = fn(&[u8]) -> Result<(), ApiError>;

const ENDPOINTS: [Parse; 10] = [
    |body| ChatRequest::parse(body).map(drop),
    |body| CompletionRequest::parse(body).map(drop),
    |body| ResponsesRequest::parse(body).map(drop),
    |body| MessagesRequest::parse(body).map(drop),
    |body| TokenizeRequest::parse(body).map(drop),
    |body| DetokenizeRequest::parse(body).map(drop),
    |body| EmbeddingRequest::parse(body).map(drop),
    |body| RerankRequest::parse(body).map(drop),
    |body| ScoreRequest::parse(body).map(drop),
    |body| KvRequest::parse(body).map(drop),
];

pub fn check(body: &[u8]) {
    for error in ENDPOINTS.iter().filter_map(|parse| parse(body).err()) {
        assert!(matches!(error.status, 400 | 404 | 413), "{error:?}");
        let length = error.message.len();
        assert!((1..=LONGEST_MESSAGE).contains(&length), "{error:?}");
        let body = error.to_json();
        assert!(body.len() <= LONGEST_BODY, "{error:?}");
        let json: Value = serde_json::from_slice(&body).expect("errors are JSON");
        assert!(json["error"]["message"].is_string(), "{json}");
    }
}
