//! Response bodies. They borrow their text, so a chunk is serialised without a copy.

use serde::{Serialize, Serializer};

/// Finish reason of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Stop,
    Length,
    ToolCalls,
    /// In place of `ToolCalls` for requests with `functions`.
    FunctionCall,
}

impl FinishReason {
    /// The reason as it is written in responses.
    pub fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::FunctionCall => "function_call",
        }
    }
}

/// What stopped the choice, unless it was EOS: vLLM's `stop_reason`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    Token(u32),
    Text(String),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
    pub cached_by_tier: Option<CachedByTier>,
    /// Reasoning tokens, a part of `completion_tokens`.
    pub reasoning_tokens: u32,
}

/// Cached tokens by source. Kinds of tiers that are not configured are omitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CachedByTier {
    pub pool: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ram: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<u32>,
}

#[derive(Serialize)]
struct UsageWire {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Serialize)]
struct PromptDetails {
    cached_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens_by_tier: Option<CachedByTier>,
}

#[derive(Serialize)]
struct CompletionDetails {
    reasoning_tokens: u32,
}

impl Serialize for Usage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        UsageWire {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            total_tokens: self.prompt_tokens + self.completion_tokens,
            prompt_tokens_details: PromptDetails {
                cached_tokens: self.cached_tokens,
                cached_tokens_by_tier: self.cached_by_tier,
            },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: self.reasoning_tokens,
            },
        }
        .serialize(serializer)
    }
}

#[derive(Debug, Serialize)]
pub struct CompletionResponse<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<CompletionChoice<'a>>,
    pub usage: Usage,
}

/// A choice of `/v1/completions`: whole, or the part of it in one chunk of a stream.
#[derive(Debug, Serialize)]
pub struct CompletionChoice<'a> {
    pub index: u32,
    pub text: &'a str,
    pub logprobs: Option<&'a CompletionLogprobs>,
    pub finish_reason: Option<FinishReason>,
    pub stop_reason: Option<&'a StopReason>,
    /// In vLLM's format: for each prompt token, null or scores by token id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<&'a [Option<PromptScores>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<&'a [u32]>,
}

/// Parallel lists, one item per token. An item is `None` for the first token of a prompt, which has
/// no probability.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CompletionLogprobs {
    /// Number of characters in the text before the token.
    pub text_offset: Vec<u32>,
    pub token_logprobs: Vec<Option<f32>>,
    pub tokens: Vec<String>,
    pub top_logprobs: Vec<Option<TokenScores>>,
}

/// Log-probability by token text: an object with the likeliest token first. Of several tokens with
/// the same text, such as parts of characters, only the first is kept.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenScores(Vec<(String, f32)>);

impl TokenScores {
    pub fn insert(&mut self, token: String, logprob: f32) {
        if self.0.iter().all(|(known, _)| *known != token) {
            self.0.push((token, logprob));
        }
    }
}

impl Serialize for TokenScores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

#[derive(Debug, Serialize)]
pub struct ChatResponse<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub choices: Vec<ChatChoice<'a>>,
    pub usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<&'a [u32]>,
    /// As in [`CompletionChoice`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Vec<Option<PromptScores>>>,
}

/// Log-probabilities at one position of the prompt: an object by token id, with the prompt's own
/// token first and then the others, the most likely first.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptScores(pub Vec<(u32, PromptLogprob)>);

impl Serialize for PromptScores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, scored)| (token, scored)))
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PromptLogprob {
    pub logprob: f32,
    /// Rank of the token at its position; 1 = the most likely.
    pub rank: u32,
    pub decoded_token: String,
}

#[derive(Debug, Serialize)]
pub struct ChatChoice<'a> {
    pub index: u32,
    pub message: AssistantMessage<'a>,
    pub logprobs: Option<&'a ChatLogprobs>,
    pub finish_reason: Option<FinishReason>,
    pub stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<&'a [u32]>,
}

#[derive(Debug, Serialize)]
pub struct AssistantMessage<'a> {
    pub role: &'static str,
    /// Null when there are calls and no text.
    pub content: Option<&'a str>,
    /// Reasoning, under vLLM's name and under the name in DeepSeek and SGLang. A client reads one
    /// of the two fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub tool_calls: &'a [ToolCall<'a>],
    /// In place of `tool_calls` if the request used `functions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionCall<'a>>,
}

/// A tool call, or a chunk of one: only the first chunk has `id`, `kind` and the name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCall<'a> {
    /// Only in streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<&'a str>,
    /// `function`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    pub function: FunctionCall<'a>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FunctionCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a str>,
    /// JSON text.
    pub arguments: &'a str,
}

#[derive(Debug, Serialize)]
pub struct ChatChunkChoice<'a> {
    pub index: u32,
    pub delta: Delta<'a>,
    pub logprobs: Option<&'a ChatLogprobs>,
    pub finish_reason: Option<FinishReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<&'a [u32]>,
}

#[derive(Debug, Default, Serialize)]
pub struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub tool_calls: &'a [ToolCall<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionCall<'a>>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ChatLogprobs {
    pub content: Vec<TokenLogprob>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenLogprob {
    pub token: String,
    pub logprob: f32,
    /// The token's exact bytes: `token` has replacement characters where they are not UTF-8 by
    /// themselves.
    pub bytes: Vec<u8>,
    pub top_logprobs: Vec<TopLogprob>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopLogprob {
    pub token: String,
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Serialize)]
pub struct ModelList<'a> {
    pub object: &'static str,
    pub data: Vec<Model<'a>>,
}

#[derive(Debug, Serialize)]
pub struct Model<'a> {
    pub id: &'a str,
    pub object: &'static str,
    pub created: u64,
    pub owned_by: &'static str,
    /// The first name that the server serves the model by; in vLLM, the path of the weights.
    pub root: &'a str,
    /// Null until the engine is ready.
    pub max_model_len: Option<u32>,
}
