//! The OpenAPI document: the endpoints, their fields and answers, in tables.

mod answers;
mod fields;

use serde_json::{Map, Value, json};

use answers::{SCHEMAS, answer};
use fields::Fields;

/// One method of one path.
pub struct Endpoint {
    pub method: &'static str,
    /// With `{NAME}` for its parameter.
    pub path: &'static str,
    summary: &'static str,
    /// A schema of [`REQUESTS`].
    request: Option<&'static str>,
    answer: Answer,
    /// Error statuses specific to this endpoint.
    errors: &'static [u16],
}

enum Answer {
    /// A schema of [`SCHEMAS`].
    Json(&'static str),
    /// A schema of [`SCHEMAS`], or events if `stream` is true.
    JsonOrEvents(&'static str),
    Text,
    /// An endless stream of lines, each JSON of this schema.
    Lines(&'static str),
    /// Errors only.
    Never,
}

/// Error statuses of endpoints: only the key check, with a body, with engine work, administration.
const KEY: &[u16] = &[401];
const BODY: &[u16] = &[400, 401, 403, 404, 408, 413, 415, 429, 503];
const WORK: &[u16] = &[400, 401, 403, 404, 408, 413, 415, 429, 500, 503];
const ADMIN: &[u16] = &[400, 401, 403, 404, 408, 409, 413, 415, 500, 503];

const fn get(path: &'static str, summary: &'static str, answer: Answer) -> Endpoint {
    Endpoint {
        method: "get",
        path,
        summary,
        request: None,
        answer,
        errors: KEY,
    }
}

const fn post(
    path: &'static str,
    summary: &'static str,
    request: &'static str,
    answer: Answer,
) -> Endpoint {
    let errors = match answer {
        Answer::JsonOrEvents(_) => WORK,
        _ => BODY,
    };
    Endpoint {
        method: "post",
        path,
        summary,
        request: Some(request),
        answer,
        errors,
    }
}

const fn rerank(path: &'static str) -> Endpoint {
    let answer = Answer::Json("Reranked");
    post(
        path,
        "Documents by their relevance to a query",
        "RerankRequest",
        answer,
    )
    .errors(WORK)
}

const fn score(path: &'static str) -> Endpoint {
    let answer = Answer::Json("Scores");
    post(path, "How alike two texts are", "ScoreRequest", answer).errors(WORK)
}

impl Endpoint {
    const fn errors(mut self, errors: &'static [u16]) -> Self {
        self.errors = errors;
        self
    }

    const fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }
}

/// All endpoints.
pub const ENDPOINTS: &[Endpoint] = &[
    post(
        "/v1/chat/completions",
        "OpenAI's chat",
        "ChatRequest",
        Answer::JsonOrEvents("ChatCompletion"),
    ),
    post(
        "/v1/completions",
        "OpenAI's completions",
        "CompletionRequest",
        Answer::JsonOrEvents("Completion"),
    ),
    post(
        "/v1/responses",
        "OpenAI's Responses, without storage",
        "ResponsesRequest",
        Answer::JsonOrEvents("Response"),
    ),
    post(
        "/v1/responses/input_tokens",
        "Tokens of a request's input",
        "ResponsesRequest",
        Answer::Json("InputTokens"),
    ),
    get("/v1/responses/{id}", "Nothing is stored", Answer::Never).errors(&[401, 404]),
    get("/v1/responses/{id}", "Nothing is stored", Answer::Never)
        .errors(&[401, 404])
        .method("delete"),
    get(
        "/v1/responses/{id}/cancel",
        "Nothing is stored",
        Answer::Never,
    )
    .errors(&[401, 403, 404, 429])
    .method("post"),
    get(
        "/v1/responses/{id}/input_items",
        "Nothing is stored",
        Answer::Never,
    )
    .errors(&[401, 404]),
    post(
        "/v1/messages",
        "Anthropic's Messages",
        "MessagesRequest",
        Answer::JsonOrEvents("Message"),
    ),
    post(
        "/v1/messages/count_tokens",
        "Tokens of a request's input",
        "MessagesRequest",
        Answer::Json("MessageTokens"),
    ),
    post(
        "/v1/embeddings",
        "A vector of each input",
        "EmbeddingRequest",
        Answer::Json("Embeddings"),
    )
    .errors(WORK),
    rerank("/v1/rerank"),
    rerank("/v2/rerank"),
    rerank("/rerank"),
    score("/v1/score"),
    score("/score"),
    get("/v1/models", "The served names", Answer::Json("ModelList")),
    get("/v1/models/{id}", "One served name", Answer::Json("Model")).errors(&[401, 404]),
    post(
        "/tokenize",
        "Token ids of a text or a conversation",
        "TokenizeRequest",
        Answer::Json("Tokens"),
    ),
    post(
        "/detokenize",
        "The text of token ids",
        "DetokenizeRequest",
        Answer::Json("Detokenized"),
    ),
    get(
        "/tokenizer_info",
        "Special tokens and chat template",
        Answer::Json("TokenizerInfo"),
    )
    .errors(&[401, 503]),
    get(
        "/v1/kv",
        "What the KV cache holds",
        Answer::Json("KvReport"),
    )
    .errors(ADMIN),
    get("/v1/kv", "Empties the KV cache", Answer::Json("KvChange"))
        .errors(ADMIN)
        .method("delete"),
    post(
        "/v1/kv/pin",
        "Keeps a prefix",
        "KvRequest",
        Answer::Json("KvChange"),
    )
    .errors(ADMIN),
    post(
        "/v1/kv/unpin",
        "Lets a prefix go",
        "KvRequest",
        Answer::Json("KvChange"),
    )
    .errors(ADMIN),
    get("/", "What this is", Answer::Text),
    get(
        "/health",
        "Whether the engine makes progress",
        Answer::Json("Health"),
    )
    .errors(&[503]),
    get("/ping", "As /health", Answer::Json("Health")).errors(&[503]),
    get("/ping", "As /health", Answer::Json("Health"))
        .errors(&[403, 503])
        .method("post"),
    get(
        "/ready",
        "Whether requests are taken",
        Answer::Json("Health"),
    )
    .errors(&[503]),
    get("/version", "The version", Answer::Json("Version")),
    get("/metrics", "Metrics in Prometheus' text form", Answer::Text),
    get("/metrics/stream", "Load by step", Answer::Lines("Load")).errors(&[503]),
    get("/openapi.json", "This document", Answer::Json("OpenApi")),
];

/// Request bodies: name of the schema, fields, and names of the required fields.
const REQUESTS: [(&str, &[Fields], &[&str]); 10] = [
    (
        "ChatRequest",
        &[fields::CHAT, fields::OPENAI, fields::COMMON],
        &["messages"],
    ),
    (
        "CompletionRequest",
        &[fields::COMPLETION, fields::OPENAI, fields::COMMON],
        &["prompt"],
    ),
    (
        "ResponsesRequest",
        &[fields::RESPONSES, fields::COMMON],
        &["input"],
    ),
    (
        "MessagesRequest",
        &[fields::MESSAGES, fields::COMMON],
        &["messages"],
    ),
    (
        "EmbeddingRequest",
        &[fields::EMBEDDING, fields::POOLED],
        &[],
    ),
    (
        "RerankRequest",
        &[fields::RERANK, fields::POOLED],
        &["query", "documents"],
    ),
    ("ScoreRequest", &[fields::SCORE, fields::POOLED], &[]),
    ("TokenizeRequest", &[fields::TOKENIZE], &[]),
    ("DetokenizeRequest", &[fields::DETOKENIZE], &["tokens"]),
    ("KvRequest", &[fields::KV], &[]),
];

/// The document, in OpenAPI 3.1.
pub fn document(version: &str) -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let path = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        if let Some(id) = endpoint.path.contains("{id}").then(id_parameter) {
            path["parameters"] = json!([id]);
        }
        path[endpoint.method] = operation(endpoint);
    }
    let mut schemas = Map::new();
    for (name, tables, required) in REQUESTS {
        schemas.insert(name.into(), request(tables, required));
    }
    for (name, text) in SCHEMAS {
        schemas.insert((*name).into(), parsed(text));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock", "version": version, "license": {"name": "Apache-2.0",
            "identifier": "Apache-2.0"},
            "description": "Unknown fields are ignored; fields that would change the output and \
                are not built are refused by name.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    })
}

fn id_parameter() -> Value {
    json!({"name": "id", "in": "path", "required": true, "schema": {"type": "string"}})
}

fn operation(endpoint: &Endpoint) -> Value {
    let anthropic = endpoint.path.starts_with("/v1/messages");
    let error = if anthropic { "AnthropicError" } else { "Error" };
    let mut responses = Map::new();
    match endpoint.answer {
        Answer::Never => {}
        Answer::Text => {
            let text = json!({"text/plain": {"schema": {"type": "string"}}});
            responses.insert("200".into(), answer("The answer", text));
        }
        Answer::Lines(name) => {
            let lines = json!({"application/x-ndjson": {"schema": reference(name)}});
            responses.insert("200".into(), answer("The answer", lines));
        }
        Answer::Json(name) => {
            let body = json!({"application/json": {"schema": reference(name)}});
            responses.insert("200".into(), answer("The answer", body));
        }
        Answer::JsonOrEvents(name) => {
            let body = json!({
                "application/json": {"schema": reference(name)},
                "text/event-stream": {"schema": reference("Event")},
            });
            responses.insert("200".into(), answer("The answer, or its events", body));
        }
    }
    for status in endpoint.errors {
        let body = json!({"application/json": {"schema": reference(error)}});
        responses.insert(status.to_string(), answer("An error", body));
    }
    let mut operation = json!({"summary": endpoint.summary, "responses": responses});
    if let Some(name) = endpoint.request {
        let body = json!({"application/json": {"schema": reference(name)}});
        operation["requestBody"] = json!({"required": true, "content": body});
    }
    operation
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn request(tables: &[Fields], required: &[&str]) -> Value {
    let mut properties = Map::new();
    for (name, text) in tables.iter().copied().flatten() {
        let mut schema = parsed(text);
        if let Some(kind) = schema.get("type").and_then(Value::as_str)
            && !required.contains(name)
        {
            schema["type"] = json!([kind, "null"]);
        }
        properties.insert((*name).into(), schema);
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// Parses a schema of the tables. Cannot fail: the tables are constants, and a test parses them
/// all.
fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;
    use crate::fields::asked;
    use crate::{
        ApiError, ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingRequest, KvRequest,
        MessagesRequest, RerankRequest, ResponsesRequest, ScoreRequest, TokenizeRequest,
    };

    fn documented(name: &str) -> BTreeSet<String> {
        let schema = &document("1")["components"]["schemas"][name];
        let properties = schema["properties"].as_object().unwrap();
        properties.keys().cloned().collect()
    }

    /// Names of all fields that a parser takes from any of several bodies.
    fn asked_by<T>(
        bodies: &[&str],
        parse: impl Fn(&[u8]) -> Result<T, ApiError>,
    ) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for body in bodies {
            asked::begin();
            assert!(parse(body.as_bytes()).is_ok(), "{body}");
            names.extend(asked::first());
        }
        names
    }

    #[test]
    fn tables_are_json() {
        let all = REQUESTS.iter().flat_map(|(_, tables, _)| tables.iter());
        let texts = all.flat_map(|table| table.iter().map(|(_, text)| *text));
        for text in texts.chain(SCHEMAS.iter().map(|(_, text)| *text)) {
            assert!(
                serde_json::from_str::<Value>(text).unwrap().is_object(),
                "{text}"
            );
        }
    }

    #[test]
    fn the_parsers_ask_for_the_documented_fields_and_no_others() {
        let messages = r#"{"messages": [{"role": "user", "content": "hi"}], "tools": [
            {"type": "function", "function": {"name": "f"}}]}"#;
        assert_eq!(
            asked_by(&[messages], ChatRequest::parse),
            documented("ChatRequest")
        );
        let prompt = r#"{"prompt": "hi"}"#;
        let completion = asked_by(&[prompt], CompletionRequest::parse);
        assert_eq!(completion, documented("CompletionRequest"));
        let plain = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
        let tokenize = asked_by(&[prompt, plain], TokenizeRequest::parse);
        assert_eq!(tokenize, documented("TokenizeRequest"));
        let tokens = asked_by(&[r#"{"tokens": [1]}"#], DetokenizeRequest::parse);
        assert_eq!(tokens, documented("DetokenizeRequest"));
        let ids = r#"{"prompt_token_ids": [1]}"#;
        let kv = asked_by(&[prompt, plain, ids], KvRequest::parse);
        assert_eq!(kv, documented("KvRequest"));
        let embedding = asked_by(&[r#"{"input": "a"}"#, plain], EmbeddingRequest::parse);
        assert_eq!(embedding, documented("EmbeddingRequest"));
        let rerank = asked_by(
            &[r#"{"query": "q", "documents": ["a"]}"#],
            RerankRequest::parse,
        );
        assert_eq!(rerank, documented("RerankRequest"));
        let score = asked_by(
            &[r#"{"text_1": "q", "text_2": ["a"]}"#],
            ScoreRequest::parse,
        );
        assert_eq!(score, documented("ScoreRequest"));
    }

    /// Parsers of converted protocols leave fields that they do not take to the parser of chat.
    #[test]
    fn translated_protocols_ask_for_their_own_fields() {
        let without = |name: &str, ignored: &[&str]| -> BTreeSet<String> {
            let common = fields::COMMON.iter().map(|(name, _)| *name);
            let left: BTreeSet<&str> = common.chain(ignored.iter().copied()).collect();
            let mut names = documented(name);
            names.retain(|name| !left.contains(name.as_str()));
            names
        };
        let mut responses = asked_by(&[r#"{"input": "hi"}"#], ResponsesRequest::parse);
        let refused = [
            "previous_response_id",
            "conversation",
            "prompt",
            "context_management",
            "n",
            "stream_options",
            "functions",
            "function_call",
        ];
        for name in refused {
            assert!(responses.remove(name), "{name}");
        }
        assert_eq!(responses, without("ResponsesRequest", &[]));
        let body = r#"{"messages": [{"role": "user", "content": "hi"}],
            "thinking": {"type": "disabled"}}"#;
        let mut messages = asked_by(&[body], MessagesRequest::parse);
        let refused = [
            "mcp_servers",
            "container",
            "n",
            "stream_options",
            "functions",
            "function_call",
            "logprobs",
            "top_logprobs",
            "context_management",
        ];
        for name in refused {
            assert!(messages.remove(name), "{name}");
        }
        // The parser of chat requests takes `max_tokens`, which has the same name there.
        assert_eq!(messages, without("MessagesRequest", &["max_tokens"]));
    }
}
