//! The response object of `/v1/responses`, and its output items.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::{TokenLogprob, Usage};

/// Request fields echoed in the response.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Echo {
    pub instructions: Option<String>,
    pub max_output_tokens: Option<i64>,
    pub metadata: Map<String, Value>,
    pub parallel_tool_calls: bool,
    pub reasoning: Value,
    pub temperature: Option<f32>,
    pub text: Value,
    pub tool_choice: Value,
    pub tools: Vec<Value>,
    pub top_logprobs: u8,
    pub top_p: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// Fields that are the same in every event that repeats the response.
#[derive(Debug, Serialize)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created_at: u64,
    pub(super) model: String,
    pub(super) background: bool,
    pub(super) previous_response_id: Option<()>,
    pub(super) service_tier: &'static str,
    pub(super) store: bool,
    pub(super) truncation: &'static str,
    #[serde(flatten)]
    pub(super) echo: Echo,
}

impl Head {
    pub(super) fn new(id: String, created_at: u64, model: String, echo: Echo) -> Self {
        Self {
            id,
            object: "response",
            created_at,
            model,
            background: false,
            previous_response_id: None,
            service_tier: "default",
            store: false,
            truncation: "disabled",
            echo,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Body<'a> {
    #[serde(flatten)]
    pub(super) head: &'a Head,
    pub(super) status: Status,
    pub(super) error: Option<Fault<'a>>,
    pub(super) incomplete_details: Option<Incomplete>,
    pub(super) output: &'a [Value],
    pub(super) usage: Option<UsageBody>,
}

#[derive(Serialize)]
pub(super) struct Incomplete {
    pub(super) reason: &'static str,
}

#[derive(Serialize)]
pub(super) struct Fault<'a> {
    code: &'static str,
    message: &'a str,
}

impl<'a> From<&'a ApiError> for Fault<'a> {
    /// Always `server_error`, because clients accept only a fixed set of codes.
    fn from(error: &'a ApiError) -> Self {
        Self {
            code: "server_error",
            message: &error.message,
        }
    }
}

#[derive(Serialize)]
pub(super) struct UsageBody {
    input_tokens: u32,
    input_tokens_details: InputDetails,
    output_tokens: u32,
    output_tokens_details: OutputDetails,
    total_tokens: u32,
}

#[derive(Serialize)]
struct InputDetails {
    cached_tokens: u32,
    cache_write_tokens: u32,
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: u32,
}

impl From<&Usage> for UsageBody {
    fn from(usage: &Usage) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails {
                cached_tokens: usage.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails {
                reasoning_tokens: usage.reasoning_tokens,
            },
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
        }
    }
}

/// An output item, possibly incomplete.
#[derive(Debug)]
pub(super) enum Item {
    Message {
        text: String,
        logprobs: Vec<TokenLogprob>,
    },
    Reasoning {
        text: String,
    },
    Call {
        call_id: String,
        name: String,
        arguments: String,
    },
}

impl Item {
    pub(super) fn empty_message() -> Self {
        Self::Message {
            text: String::new(),
            logprobs: Vec::new(),
        }
    }

    /// Prefix of the item's id.
    pub(super) fn prefix(&self) -> &'static str {
        match self {
            Self::Message { .. } => "msg",
            Self::Reasoning { .. } => "rs",
            Self::Call { .. } => "fc",
        }
    }

    /// The item's only content part; `None` for a call, which has no parts.
    pub(super) fn part(&self) -> Option<Value> {
        match self {
            Self::Message { text, logprobs } => Some(json!({
                "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs,
            })),
            Self::Reasoning { text } => Some(json!({"type": "reasoning_text", "text": text})),
            Self::Call { .. } => None,
        }
    }

    /// The item as JSON. Its content part is left out while the item is in progress.
    pub(super) fn json(&self, id: &str, status: Status) -> Value {
        let parts: Vec<Value> = match status {
            Status::InProgress => Vec::new(),
            _ => self.part().into_iter().collect(),
        };
        match self {
            Self::Message { .. } => json!({
                "id": id, "type": "message", "status": status, "role": "assistant",
                "content": parts,
            }),
            Self::Reasoning { .. } => json!({
                "id": id, "type": "reasoning", "status": status, "summary": [],
                "content": parts, "encrypted_content": null,
            }),
            Self::Call {
                call_id,
                name,
                arguments,
            } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id,
                "name": name, "arguments": arguments,
            }),
        }
    }
}

/// The answer of `POST /v1/responses/input_tokens`.
#[derive(Debug, Serialize)]
pub struct InputTokens {
    pub object: &'static str,
    pub input_tokens: usize,
}
