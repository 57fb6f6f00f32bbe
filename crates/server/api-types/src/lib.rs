//! Request and response bodies of OpenAI's and Anthropic's APIs, errors and SSE. No IO.
//!
//! Requests: a body is split into its fields once ([`Fields`]), and each endpoint takes the fields
//! that it supports. The remaining fields are checked against a table of fields that would change
//! the output but are not implemented ([`neutral`]). Such a field is accepted at its neutral value
//! and otherwise rejected by name. Unknown fields are ignored, as in other OpenAI-compatible
//! servers.

pub mod error;
pub mod sse;
pub mod sse_reader;

mod anthropic;
mod chat;
mod chat_body;
mod common;
mod completion;
mod conversation;
mod event;
mod fields;
mod grammar;
mod kv;
mod logits;
mod messages;
mod neutral;
pub mod openapi;
mod pooling;
mod response;
mod responses;
mod resume;
mod tokenize;
mod tools;

pub use anthropic::{MessageWriter, MessagesRequest, anthropic_error};
pub use chat::ChatRequest;
pub use common::{Common, MaxTokens, StreamOptions, Truncation};
pub use completion::{CompletionRequest, Prompt};
pub use error::ApiError;
pub use fields::Fields;
pub use grammar::OutputGrammar;
pub use kv::{KvInput, KvRequest};
pub use logits::LogitRules;
pub use pooling::{
    EmbeddingInput, EmbeddingRequest, Encoding, MAX_INPUTS, Pooled, PoolingUsage, RerankRequest,
    ScoreRequest, cosine, sigmoid, trimmed,
};
pub use response::{
    AssistantMessage, CachedByTier, ChatChoice, ChatChunkChoice, ChatLogprobs, ChatResponse,
    CompletionChoice, CompletionLogprobs, CompletionResponse, Delta, FinishReason, FunctionCall,
    Model, ModelList, PromptLogprob, PromptScores, StopReason, TokenLogprob, TokenScores, ToolCall,
    TopLogprob, Usage,
};
pub use responses::{Echo, InputTokens, ResponseWriter, ResponsesRequest};
pub use resume::{FAILED_MARK, MARK, Origin, RESUMABLE, Resume};
pub use tokenize::{DetokenizeRequest, TokenizeInput, TokenizeRequest};
pub use tools::{Tool, ToolChoice, Tools};

/// Upper bound on the alternatives (most likely tokens with log-probabilities) that a request may
/// have per token.
pub const MAX_LOGPROBS: u8 = 20;
