//! Schemas of responses (only members that are always present) and of parts of requests.

use serde_json::{Value, json};

/// One entry of `responses`.
pub(super) fn answer(description: &str, content: Value) -> Value {
    json!({"description": description, "content": content})
}

pub(super) const SCHEMAS: &[(&str, &str)] = &[
    (
        "Error",
        r#"{"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
            "required": ["message", "type", "param", "code"], "properties": {
            "message": {"type": "string"}, "type": {"type": "string"},
            "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}}}}}"#,
    ),
    (
        "AnthropicError",
        r#"{"type": "object", "required": ["type", "error"], "properties": {
            "type": {"const": "error"}, "request_id": {"type": "string"}, "error": {
            "type": "object", "required": ["type", "message"], "properties": {
            "message": {"type": "string"}, "type": {"type": "string"}}}}}"#,
    ),
    (
        "ChatMessage",
        r#"{"type": "object", "required": ["role"], "properties": {
            "role": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
            "content": {"anyOf": [{"type": "string"}, {"type": "null"},
                {"type": "array", "items": {"type": "object", "required": ["type", "text"],
                 "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}}]},
            "tool_calls": {"type": ["array", "null"], "maxItems": 128,
                "items": {"type": "object", "required": ["function"], "properties": {
                    "id": {"type": ["string", "null"]}, "function": {"type": "object",
                    "required": ["name", "arguments"], "properties": {
                        "name": {"type": "string"}, "arguments": {"type": "string"}}}}}}}}"#,
    ),
    (
        "FunctionName",
        r#"{"type": "string", "pattern": "^[a-zA-Z0-9_.-]{1,128}$"}"#,
    ),
    (
        "Function",
        r##"{"type": "object", "required": ["name"], "properties": {
            "name": {"$ref": "#/components/schemas/FunctionName"},
            "description": {"type": ["string", "null"]},
            "parameters": {"type": ["object", "null"]},
            "strict": {"type": ["boolean", "null"]}}}"##,
    ),
    (
        "NamedSchema",
        r#"{"type": "object", "required": ["type", "schema"], "properties": {
            "type": {"const": "json_schema"}, "name": {"type": "string"},
            "schema": {"type": "object"}}}"#,
    ),
    (
        "TextBlock",
        r#"{"type": "object", "required": ["type", "text"], "properties": {
            "type": {"const": "text"}, "text": {"type": "string"}}}"#,
    ),
    (
        "InputMessage",
        r##"{"type": "object", "required": ["role", "content"], "properties": {
            "role": {"enum": ["user", "assistant", "system"]}, "content": {"anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"$ref": "#/components/schemas/TextBlock"}},
            {"type": "array", "items": {"anyOf": [
                {"$ref": "#/components/schemas/TextBlock"},
                {"type": "object", "required": ["type", "thinking"], "properties": {
                    "type": {"const": "thinking"}, "thinking": {"type": "string"}}},
                {"type": "object", "required": ["type", "id", "name", "input"], "properties": {
                    "type": {"const": "tool_use"}, "id": {"type": "string"},
                    "name": {"type": "string"}, "input": {"type": "object"}}},
                {"type": "object", "required": ["type", "tool_use_id"], "properties": {
                    "type": {"const": "tool_result"}, "tool_use_id": {"type": "string"},
                    "content": {"type": "string"}}}]}}]}}}"##,
    ),
    (
        "InputItem",
        r#"{"anyOf": [
            {"type": "object", "required": ["role", "content"], "properties": {
                "type": {"const": "message"}, "content": {"type": "string"},
                "role": {"enum": ["user", "assistant", "system", "developer"]}}},
            {"type": "object", "required": ["type", "call_id", "name", "arguments"],
             "properties": {"type": {"const": "function_call"}, "call_id": {"type": "string"},
                "name": {"type": "string"}, "arguments": {"type": "string"}}},
            {"type": "object", "required": ["type", "call_id", "output"], "properties": {
                "type": {"const": "function_call_output"}, "call_id": {"type": "string"},
                "output": {"type": "string"}}},
            {"type": "object", "required": ["type", "summary"], "properties": {
                "type": {"const": "reasoning"}, "summary": {"type": "array", "items": {
                    "type": "object", "required": ["type", "text"], "properties": {
                    "type": {"const": "summary_text"}, "text": {"type": "string"}}}}}}]}"#,
    ),
    (
        "ChatCompletion",
        r##"{"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
            "properties": {"object": {"const": "chat.completion"}, "choices": {"type": "array",
            "items": {"type": "object", "required": ["index", "message", "finish_reason"]}},
            "usage": {"$ref": "#/components/schemas/Usage"}}}"##,
    ),
    (
        "Completion",
        r##"{"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
            "properties": {"object": {"const": "text_completion"}, "choices": {"type": "array",
            "items": {"type": "object", "required": ["index", "text", "finish_reason"]}},
            "usage": {"$ref": "#/components/schemas/Usage"}}}"##,
    ),
    (
        "Event",
        r#"{"type": "object", "description": "One event: data is JSON or [DONE]",
            "required": ["data"], "properties": {
            "event": {"type": "string"}, "data": {"type": "string"}}}"#,
    ),
    (
        "Usage",
        r#"{"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
            "additionalProperties": {"type": ["integer", "object"]}}"#,
    ),
    (
        "Response",
        r#"{"type": "object", "required": ["id", "object", "created_at", "status", "model",
            "output", "usage", "error", "incomplete_details"], "properties": {
            "object": {"const": "response"}, "status": {"enum": ["completed", "incomplete"]},
            "output": {"type": "array", "items": {"type": "object", "required": ["type", "id"]}},
            "usage": {"type": "object", "required": ["input_tokens", "input_tokens_details",
            "output_tokens", "output_tokens_details", "total_tokens"]}}}"#,
    ),
    (
        "InputTokens",
        r#"{"type": "object", "required": ["object", "input_tokens"], "properties": {
            "object": {"const": "response.input_tokens"}, "input_tokens": {"type": "integer"}}}"#,
    ),
    (
        "Message",
        r#"{"type": "object", "required": ["id", "type", "role", "model", "content",
            "stop_reason", "stop_sequence", "usage"], "properties": {"type": {"const": "message"},
            "role": {"const": "assistant"}, "content": {"type": "array",
            "items": {"type": "object", "required": ["type"]}}, "usage": {"type": "object",
            "required": ["input_tokens", "output_tokens"]}}}"#,
    ),
    (
        "MessageTokens",
        r#"{"type": "object", "required": ["input_tokens"],
            "properties": {"input_tokens": {"type": "integer"}}}"#,
    ),
    (
        "Embeddings",
        r##"{"type": "object", "required": ["id", "object", "created", "model", "data", "usage"],
            "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {
            "type": "object", "required": ["index", "object", "embedding"], "properties": {
            "object": {"const": "embedding"}, "index": {"type": "integer"}, "embedding": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}}]}}}},
            "usage": {"$ref": "#/components/schemas/PoolingUsage"}}}"##,
    ),
    (
        "Scores",
        r##"{"type": "object", "required": ["id", "object", "created", "model", "data", "usage"],
            "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": {
            "type": "object", "required": ["index", "object", "score"], "properties": {
            "object": {"const": "score"}, "index": {"type": "integer"},
            "score": {"type": "number"}}}},
            "usage": {"$ref": "#/components/schemas/PoolingUsage"}}}"##,
    ),
    (
        "Reranked",
        r##"{"type": "object", "required": ["id", "model", "results", "usage"], "properties": {
            "results": {"type": "array", "items": {"type": "object",
            "required": ["index", "relevance_score"], "properties": {
            "index": {"type": "integer"}, "relevance_score": {"type": "number"},
            "document": {"type": "object", "required": ["text"]}}}},
            "usage": {"$ref": "#/components/schemas/PoolingUsage"}}}"##,
    ),
    (
        "PoolingUsage",
        r#"{"type": "object", "required": ["prompt_tokens", "total_tokens"],
            "additionalProperties": {"type": ["integer", "object"]}}"#,
    ),
    (
        "Model",
        r#"{"type": "object", "required": ["id", "object", "created", "owned_by"],
            "properties": {"object": {"const": "model"}}}"#,
    ),
    (
        "ModelList",
        r##"{"type": "object", "required": ["object", "data"], "properties": {
            "object": {"const": "list"}, "data": {"type": "array",
            "items": {"$ref": "#/components/schemas/Model"}}}}"##,
    ),
    (
        "Tokens",
        r#"{"type": "object", "required": ["count", "max_model_len", "tokens"], "properties": {
            "count": {"type": "integer"}, "tokens": {"type": "array",
            "items": {"type": "integer"}}}}"#,
    ),
    (
        "Detokenized",
        r#"{"type": "object", "required": ["prompt"],
            "properties": {"prompt": {"type": "string"}}}"#,
    ),
    (
        "TokenizerInfo",
        r#"{"type": "object", "required": ["tokenizer_class", "bos_token", "eos_token",
            "chat_template"]}"#,
    ),
    ("KvReport", r#"{"type": "object"}"#),
    ("KvChange", r#"{"type": "object"}"#),
    (
        "Health",
        r#"{"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}}"#,
    ),
    (
        "Load",
        r#"{"type": "object", "required": ["step", "waiting", "running", "kv_use"], "properties": {
            "step": {"type": "integer"}, "waiting": {"type": "integer"},
            "running": {"type": "integer"}, "kv_use": {"type": "number"},
            "kv_tokens": {"type": "integer"}}}"#,
    ),
    (
        "Version",
        r#"{"type": "object", "required": ["version"],
            "properties": {"version": {"type": "string"}}}"#,
    ),
    (
        "OpenApi",
        r#"{"type": "object", "required": ["openapi", "info", "paths"]}"#,
    ),
];
