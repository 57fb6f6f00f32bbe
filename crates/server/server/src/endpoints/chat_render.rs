//! Renders output deltas as chat chunks and chat responses.

use std::sync::Arc;

use bytes::BytesMut;
use penstock_api_types::sse::{ChunkWriter, Tail};
use penstock_api_types::{
    AssistantMessage, ChatChoice, ChatChunkChoice, ChatLogprobs, ChatRequest, ChatResponse, Delta,
    PromptScores, ToolCall, Usage,
};
use penstock_tokenizer::Tokenizer;

use super::chat_parts::Parts;
use crate::delta::OutputDelta;
use crate::logprobs::{self, TokenNames};
use crate::render::{Identity, Render};

pub(crate) struct ChatRender {
    identity: Identity,
    writer: ChunkWriter,
    tokenizer: Arc<Tokenizer>,
    style: ChatStyle,
    /// The prompt's ids, if the response shows or scores them.
    prompt: Vec<u32>,
    /// For each choice, whether its first chunk was sent.
    started: Vec<bool>,
}

/// Optional contents of a chat response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChatStyle {
    logprobs: bool,
    tokens_as_ids: bool,
    prompt_logprobs: Option<u8>,
    token_ids: bool,
    /// The request had `functions`: calls are a `function_call`.
    legacy: bool,
}

impl ChatStyle {
    pub(crate) fn of(request: &ChatRequest) -> Self {
        Self {
            logprobs: request.logprobs.is_some(),
            tokens_as_ids: request.tokens_as_ids,
            prompt_logprobs: request.prompt_logprobs,
            token_ids: request.common.return_token_ids,
            legacy: request.tools.legacy,
        }
    }
}

impl ChatRender {
    pub(crate) fn new(
        identity: Identity,
        tokenizer: Arc<Tokenizer>,
        style: ChatStyle,
        prompt: &[u32],
        choices: usize,
    ) -> Self {
        let writer = ChunkWriter::new(
            &identity.id,
            "chat.completion.chunk",
            identity.created,
            &identity.model,
        );
        Self {
            identity,
            writer,
            tokenizer,
            style,
            prompt: match style.token_ids || style.prompt_logprobs.is_some() {
                true => prompt.to_vec(),
                false => Vec::new(),
            },
            started: vec![false; choices],
        }
    }

    fn logprobs(&self, delta: &OutputDelta) -> Option<ChatLogprobs> {
        let names = TokenNames {
            tokenizer: &self.tokenizer,
            as_ids: self.style.tokens_as_ids,
        };
        let scores = || logprobs::chat(names, &delta.tokens, &delta.logprobs);
        self.style.logprobs.then(scores)
    }

    fn shown_prompt(&self) -> Option<&[u32]> {
        self.style.token_ids.then_some(&self.prompt)
    }

    fn shown_tokens<'d>(&self, delta: &'d OutputDelta) -> Option<&'d [u32]> {
        self.style.token_ids.then_some(&delta.tokens)
    }

    /// Log-probabilities of the prompt. They are the same for all choices; the first choice's delta
    /// has them.
    fn prompt_logprobs(&self, deltas: &[OutputDelta]) -> Option<Vec<Option<PromptScores>>> {
        let most = self.style.prompt_logprobs?;
        let rows = deltas.first().map(|delta| &delta.prompt_logprobs)?;
        Some(logprobs::prompt(&self.tokenizer, most, &self.prompt, rows))
    }

    /// Appends the chunk with the role. The chunk is sent with the first token, because clients use
    /// it to measure the time to first token.
    fn start(&mut self, out: &mut BytesMut, index: usize, usage: Option<&Usage>) {
        self.started[index] = true;
        let choice = ChatChunkChoice {
            index: index as u32,
            delta: Delta {
                role: Some("assistant"),
                content: Some(""),
                ..Delta::default()
            },
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
        };
        self.writer.choice(
            out,
            &choice,
            Tail {
                usage,
                prompt_token_ids: self.shown_prompt(),
            },
        );
    }

    fn message<'a>(&self, parts: &'a Parts<'_>, calls: &'a [ToolCall<'a>]) -> AssistantMessage<'a> {
        let reasoning = parts.reasoning.as_deref();
        AssistantMessage {
            role: "assistant",
            content: parts
                .content
                .as_deref()
                .or((!parts.has_calls()).then_some("")),
            reasoning,
            reasoning_content: reasoning,
            tool_calls: if self.style.legacy { &[] } else { calls },
            function_call: parts.function_call().filter(|_| self.style.legacy),
        }
    }

    /// Whether a chunk would have contents. An incomplete character has none.
    fn has_news(&self, delta: &OutputDelta, usage: Option<&Usage>) -> bool {
        let style = self.style;
        let tokens_shown = style.token_ids || style.logprobs || usage.is_some();
        !delta.events.is_empty()
            || delta.finish.is_some()
            || (tokens_shown && !delta.tokens.is_empty())
    }
}

impl Render for ChatRender {
    fn chunk(
        &mut self,
        out: &mut BytesMut,
        index: usize,
        delta: &OutputDelta,
        usage: Option<&Usage>,
    ) {
        if !self.started[index] {
            self.start(out, index, usage);
        }
        if !self.has_news(delta, usage) {
            return;
        }
        let logprobs = self.logprobs(delta);
        let parts = Parts::of(&delta.events);
        let (reasoning, calls) = (parts.reasoning.as_deref(), parts.calls(true));
        let other = reasoning.is_some() || parts.has_calls();
        let choice = ChatChunkChoice {
            index: index as u32,
            delta: Delta {
                role: None,
                // Clients expect at least one member.
                content: parts.content.as_deref().or((!other).then_some("")),
                reasoning,
                reasoning_content: reasoning,
                tool_calls: if self.style.legacy { &[] } else { &calls },
                function_call: parts.function_call().filter(|_| self.style.legacy),
            },
            logprobs: logprobs.as_ref(),
            finish_reason: delta.finish,
            stop_reason: delta.stop_reason.as_ref(),
            token_ids: self.shown_tokens(delta),
        };
        self.writer.choice(
            out,
            &choice,
            Tail {
                usage,
                prompt_token_ids: None,
            },
        );
    }

    fn usage(&self, out: &mut BytesMut, usage: &Usage) {
        self.writer.usage(out, usage);
    }

    fn response(&mut self, deltas: &[OutputDelta], usage: Usage) -> Vec<u8> {
        let logprobs: Vec<_> = deltas.iter().map(|delta| self.logprobs(delta)).collect();
        let parts: Vec<_> = deltas.iter().map(|d| Parts::of(&d.events)).collect();
        let calls: Vec<_> = parts.iter().map(|parts| parts.calls(false)).collect();
        let choices = deltas.iter().enumerate().map(|(index, delta)| ChatChoice {
            index: index as u32,
            message: self.message(&parts[index], &calls[index]),
            logprobs: logprobs[index].as_ref(),
            finish_reason: delta.finish,
            stop_reason: delta.stop_reason.as_ref(),
            token_ids: self.shown_tokens(delta),
        });
        let response = ChatResponse {
            id: &self.identity.id,
            object: "chat.completion",
            created: self.identity.created,
            model: &self.identity.model,
            choices: choices.collect(),
            usage,
            prompt_token_ids: self.shown_prompt(),
            prompt_logprobs: self.prompt_logprobs(deltas),
        };
        // Plain data with string keys always serialises.
        serde_json::to_vec(&response).unwrap_or_default()
    }
}
