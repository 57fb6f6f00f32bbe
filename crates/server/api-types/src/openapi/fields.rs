//! The fields of request bodies, each with its JSON schema. `null` equals absence for all.
//!
//! Bodies are read field by field with bounds that Rust types do not express, so derived schemas
//! would be less precise. A test compares these names with the fields that the parsers take.

pub(super) type Fields = &'static [(&'static str, &'static str)];

const TEXT: &str = r#"{"type": "string"}"#;
const FLAG: &str = r#"{"type": "boolean"}"#;
const OBJECT: &str = r#"{"type": "object"}"#;
const IDS: &str = r#"{"type": "array", "items": {"type": "integer", "minimum": 0}}"#;
const COUNT: &str = r#"{"type": "integer", "minimum": 0}"#;
const SOME: &str = r#"{"type": "integer", "minimum": 1}"#;
const TOP: &str = r#"{"type": "integer", "minimum": 0, "maximum": 20}"#;
const TWO: &str = r#"{"type": "number", "minimum": -2, "maximum": 2}"#;
const OBJECTS: &str = r#"{"type": "array", "items": {"type": "object"}}"#;
const ANY: &str = "{}";
const TOOLS: &str = r##"{"type": "array", "maxItems": 128,
    "items": {"type": "object", "required": ["type", "function"], "properties": {
        "type": {"const": "function"}, "function": {"$ref": "#/components/schemas/Function"}}}}"##;
const FUNCTIONS: &str =
    r##"{"type": "array", "maxItems": 128, "items": {"$ref": "#/components/schemas/Function"}}"##;
const TOOL_CHOICE: &str = r##"{"anyOf": [{"enum": ["none", "auto", "required", null]},
    {"type": "object", "required": ["type", "function"], "properties": {
        "type": {"const": "function"}, "function": {"type": "object", "required": ["name"],
        "properties": {"name": {"type": "string"}}}}}]}"##;

/// Sampling and the like: fields of all endpoints that generate.
pub(super) const COMMON: Fields = &[
    ("model", TEXT),
    ("stream", FLAG),
    ("min_tokens", COUNT),
    ("temperature", r#"{"type": "number", "minimum": 0}"#),
    (
        "top_p",
        r#"{"type": "number", "exclusiveMinimum": 0, "maximum": 1}"#,
    ),
    ("top_k", r#"{"type": "integer", "minimum": -1}"#),
    ("min_p", r#"{"type": "number", "minimum": 0, "maximum": 1}"#),
    (
        "repetition_penalty",
        r#"{"type": "number", "exclusiveMinimum": 0}"#,
    ),
    ("presence_penalty", TWO),
    ("frequency_penalty", TWO),
    (
        "logit_bias",
        r#"{"type": "object", "maxProperties": 1024, "propertyNames": {"pattern": "^[0-9]+$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}"#,
    ),
    (
        "allowed_token_ids",
        r#"{"type": "array", "minItems": 1, "maxItems": 1024,
            "items": {"type": "integer", "minimum": 0}}"#,
    ),
    (
        "bad_words",
        r#"{"type": "array", "maxItems": 128,
            "items": {"type": "string", "minLength": 1, "maxLength": 64}}"#,
    ),
    ("seed", r#"{"type": "integer"}"#),
    (
        "stop_token_ids",
        r#"{"type": "array", "maxItems": 256, "items": {"type": "integer"}}"#,
    ),
    ("include_stop_str_in_output", FLAG),
    ("ignore_eos", FLAG),
    ("skip_special_tokens", FLAG),
    ("return_token_ids", FLAG),
    (
        "truncate_prompt_tokens",
        r#"{"type": "integer", "minimum": -1}"#,
    ),
    ("truncation_side", r#"{"enum": ["left", "right", null]}"#),
    (
        "cache_salt",
        r#"{"type": "string", "minLength": 1, "maxLength": 256}"#,
    ),
    (
        "priority",
        r#"{"type": "integer", "minimum": -2147483648, "maximum": 2147483647}"#,
    ),
    ("return_cached_tokens_by_tier", FLAG),
    (
        "resume",
        r#"{"type": "array", "minItems": 1, "prefixItems": [{"type": "object"}],
            "items": {"type": "array", "minItems": 1,
            "items": {"type": "integer", "minimum": 0}}}"#,
    ),
    (
        "structured_outputs",
        r#"{"type": "object", "minProperties": 1, "properties": {
            "json": {"type": ["object", "string", "boolean"]}, "regex": {"type": "string"},
            "choice": {"type": "array", "minItems": 1, "items": {"type": "string"}},
            "grammar": {"type": "string"}, "json_object": {"type": "boolean"},
            "structural_tag": {"type": ["object", "string"]}}}"#,
    ),
    ("guided_json", SCHEMA),
    ("json_schema", SCHEMA),
    ("guided_regex", GRAMMAR),
    ("regex", GRAMMAR),
    (
        "guided_choice",
        r#"{"type": "array", "minItems": 1, "items": {"type": "string"}}"#,
    ),
    ("guided_grammar", GRAMMAR),
    ("grammar", GRAMMAR),
    ("ebnf", GRAMMAR),
    ("guided_json_object", FLAG),
    ("structural_tag", SCHEMA),
];

/// A JSON schema or a structural tag, or its text.
const SCHEMA: &str = r#"{"type": ["object", "string"]}"#;
const GRAMMAR: &str = r#"{"type": "string", "minLength": 1, "maxLength": 262144}"#;

/// Fields that the protocols of OpenAI's older endpoints share.
pub(super) const OPENAI: Fields = &[
    (
        "response_format",
        r#"{"type": "object", "required": ["type"], "properties": {
            "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
            "json_schema": {"type": "object", "required": ["schema"], "properties": {
                "name": {"type": "string"}, "schema": {"type": "object"}}}}}"#,
    ),
    // 0 with `echo` only
    ("max_tokens", SOME),
    ("max_completion_tokens", SOME),
    ("n", r#"{"type": "integer", "minimum": 1, "maximum": 128}"#),
    (
        "stop",
        r#"{"anyOf": [{"type": "string"}, {"type": "array", "maxItems": 16,
            "items": {"type": "string", "minLength": 1}}, {"type": "null"}]}"#,
    ),
    (
        "stream_options",
        r#"{"type": "object", "properties": {"include_usage": {"type": "boolean"},
            "continuous_usage_stats": {"type": "boolean"}}}"#,
    ),
];

pub(super) const CHAT: Fields = &[
    (
        "messages",
        r##"{"type": "array", "minItems": 1,
        "items": {"$ref": "#/components/schemas/ChatMessage"}}"##,
    ),
    ("add_generation_prompt", FLAG),
    ("logprobs", FLAG),
    ("top_logprobs", TOP),
    ("tools", TOOLS),
    ("tool_choice", TOOL_CHOICE),
    ("parallel_tool_calls", FLAG),
    ("functions", FUNCTIONS),
    ("function_call", TOOL_CHOICE),
    ("include_reasoning", FLAG),
    ("continue_final_message", FLAG),
    ("chat_template", TEXT),
    ("documents", OBJECTS),
    ("prompt_logprobs", TOP),
    ("return_tokens_as_token_ids", FLAG),
    ("chat_template_kwargs", OBJECT),
    ("reasoning_effort", TEXT),
];

pub(super) const COMPLETION: Fields = &[
    ("prompt", PROMPT),
    ("echo", FLAG),
    ("logprobs", TOP),
    ("prompt_logprobs", TOP),
    ("return_tokens_as_token_ids", FLAG),
    ("add_special_tokens", FLAG),
];

const PROMPT: &str = r#"{"anyOf": [{"type": "string", "minLength": 1},
    {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
    {"type": "array", "minItems": 1,
     "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}}]}"#;

pub(super) const RESPONSES: Fields = &[
    (
        "input",
        r##"{"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1,
            "items": {"$ref": "#/components/schemas/InputItem"}}]}"##,
    ),
    ("instructions", TEXT),
    ("max_output_tokens", SOME),
    (
        "text",
        r##"{"type": "object", "properties": {"format": {"anyOf": [
            {"type": "object", "required": ["type"], "properties": {
                "type": {"enum": ["text", "json_object"]}}},
            {"$ref": "#/components/schemas/NamedSchema"}]}}}"##,
    ),
    (
        "tools",
        r##"{"type": "array", "maxItems": 128, "items": {"anyOf": [
            {"allOf": [{"$ref": "#/components/schemas/Function"},
                {"type": "object", "required": ["type"], "properties": {
                    "type": {"const": "function"}}}]},
            {"type": "object", "required": ["type"], "properties": {
                "type": {"type": "string", "not": {"const": "function"}}}}]}}"##,
    ),
    ("tool_choice", TOOL_CHOICE),
    ("parallel_tool_calls", FLAG),
    ("reasoning", OBJECT),
    (
        "include",
        r#"{"type": "array", "items": {"type": "string"}}"#,
    ),
    ("top_logprobs", TOP),
    ("metadata", OBJECT),
    ("store", FLAG),
    ("background", r#"{"enum": [false, null]}"#),
    ("truncation", r#"{"enum": ["disabled", null]}"#),
];

pub(super) const MESSAGES: Fields = &[
    (
        "messages",
        r##"{"type": "array", "minItems": 1,
            "items": {"$ref": "#/components/schemas/InputMessage"}}"##,
    ),
    (
        "system",
        r##"{"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array",
            "items": {"$ref": "#/components/schemas/TextBlock"}}]}"##,
    ),
    ("max_tokens", SOME),
    (
        "stop_sequences",
        r#"{"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1}}"#,
    ),
    (
        "tools",
        r##"{"type": "array", "maxItems": 128, "items": {"type": "object",
            "required": ["name", "input_schema"], "properties": {
            "name": {"$ref": "#/components/schemas/FunctionName"},
            "type": {"enum": ["custom", null]}, "input_schema": {"type": "object"},
            "description": {"type": ["string", "null"]}}}}"##,
    ),
    (
        "tool_choice",
        r##"{"type": "object", "required": ["type"], "properties": {
            "type": {"enum": ["auto", "any", "none"]},
            "disable_parallel_tool_use": {"type": "boolean"}}}"##,
    ),
    (
        "thinking",
        r#"{"type": "object", "required": ["type"], "properties": {
            "type": {"enum": ["enabled", "adaptive", "disabled"]}}}"#,
    ),
    (
        "output_config",
        r##"{"type": "object", "properties": {
            "effort": {"type": ["string", "null"]},
            "format": {"$ref": "#/components/schemas/NamedSchema"}}}"##,
    ),
    (
        "output_format",
        r##"{"$ref": "#/components/schemas/NamedSchema"}"##,
    ),
    ("metadata", OBJECT),
    ("chat_template_kwargs", OBJECT),
];

pub(super) const TOKENIZE: Fields = &[
    ("prompt", TEXT),
    ("add_special_tokens", FLAG),
    (
        "messages",
        r##"{"type": "array", "minItems": 1,
        "items": {"$ref": "#/components/schemas/ChatMessage"}}"##,
    ),
    ("add_generation_prompt", FLAG),
    ("tools", TOOLS),
    ("tool_choice", TOOL_CHOICE),
    ("parallel_tool_calls", FLAG),
    ("functions", FUNCTIONS),
    ("function_call", TOOL_CHOICE),
    ("continue_final_message", FLAG),
    ("chat_template", TEXT),
    ("chat_template_kwargs", OBJECT),
    ("documents", OBJECTS),
    ("reasoning_effort", TEXT),
    (
        "truncate_prompt_tokens",
        r#"{"type": "integer", "minimum": -1}"#,
    ),
    ("truncation_side", r#"{"enum": ["left", "right", null]}"#),
    ("return_token_strs", FLAG),
    ("model", TEXT),
];

pub(super) const DETOKENIZE: Fields = &[("tokens", IDS), ("model", TEXT)];

pub(super) const KV: Fields = &[
    ("prompt", ANY),
    ("messages", OBJECTS),
    ("prompt_token_ids", IDS),
    ("add_special_tokens", FLAG),
    ("add_generation_prompt", FLAG),
    ("tools", TOOLS),
    ("tool_choice", TOOL_CHOICE),
    ("parallel_tool_calls", FLAG),
    ("functions", FUNCTIONS),
    ("function_call", TOOL_CHOICE),
    ("chat_template_kwargs", OBJECT),
    ("model", TEXT),
    ("cache_salt", TEXT),
];

/// Fields of all endpoints that answer with vectors or numbers made of them.
pub(super) const POOLED: Fields = &[
    ("model", TEXT),
    (
        "truncate_prompt_tokens",
        r#"{"type": "integer", "minimum": -1}"#,
    ),
    ("truncation_side", r#"{"enum": ["left", "right", null]}"#),
    ("add_special_tokens", FLAG),
    (
        "cache_salt",
        r#"{"type": "string", "minLength": 1, "maxLength": 256}"#,
    ),
    (
        "priority",
        r#"{"type": "integer", "minimum": -2147483648, "maximum": 2147483647}"#,
    ),
    ("use_activation", FLAG),
];

const ONE_OR_MORE_TEXTS: &str = r#"{"anyOf": [{"type": "string"}, {"type": "null"},
    {"type": "array", "minItems": 1, "maxItems": 2048, "items": {"anyOf": [{"type": "string"},
     {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}]}}]}"#;

pub(super) const EMBEDDING: Fields = &[
    (
        "input",
        r#"{"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"},
            {"type": "array", "minItems": 1, "maxItems": 2048,
             "items": {"type": "string", "minLength": 1}},
            {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
            {"type": "array", "minItems": 1, "maxItems": 2048, "items": {"type": "array",
             "minItems": 1, "items": {"type": "integer", "minimum": 0}}}]}"#,
    ),
    (
        "messages",
        r##"{"type": "array", "minItems": 1,
        "items": {"$ref": "#/components/schemas/ChatMessage"}}"##,
    ),
    ("add_generation_prompt", FLAG),
    ("chat_template_kwargs", OBJECT),
    ("encoding_format", r#"{"enum": ["float", "base64", null]}"#),
    ("dimensions", SOME),
    ("normalize", FLAG),
];

pub(super) const RERANK: Fields = &[
    ("query", TEXT),
    (
        "documents",
        r#"{"type": "array", "minItems": 1, "maxItems": 2048, "items": {"anyOf": [
            {"type": "string"},
            {"type": "object", "required": ["text"],
             "properties": {"text": {"type": "string"}}}]}}"#,
    ),
    ("top_n", COUNT),
    ("return_documents", FLAG),
    ("activation", FLAG),
];

pub(super) const SCORE: Fields = &[
    ("text_1", ONE_OR_MORE_TEXTS),
    ("text_2", ONE_OR_MORE_TEXTS),
    ("data_1", ONE_OR_MORE_TEXTS),
    ("data_2", ONE_OR_MORE_TEXTS),
    ("queries", ONE_OR_MORE_TEXTS),
    ("documents", ONE_OR_MORE_TEXTS),
    ("activation", FLAG),
];
