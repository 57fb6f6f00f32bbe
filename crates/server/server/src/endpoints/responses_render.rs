//! Renders output deltas as events of `/v1/responses` and as whole responses.

use std::sync::Arc;

use bytes::BytesMut;
use penstock_api_types::{ApiError, FinishReason, ResponseWriter, StreamOptions, Usage};
use penstock_output_parsers::OutputEvent;
use penstock_tokenizer::Tokenizer;

use crate::delta::OutputDelta;
use crate::logprobs::{self, TokenNames};
use crate::render::Render;

pub(crate) struct ResponsesRender {
    writer: ResponseWriter,
    tokenizer: Arc<Tokenizer>,
    with_logprobs: bool,
    finish: Option<FinishReason>,
}

impl ResponsesRender {
    pub(crate) fn new(
        writer: ResponseWriter,
        tokenizer: Arc<Tokenizer>,
        with_logprobs: bool,
    ) -> Self {
        Self {
            writer,
            tokenizer,
            with_logprobs,
            finish: None,
        }
    }
}

impl Render for ResponsesRender {
    fn chunk(
        &mut self,
        out: &mut BytesMut,
        _index: usize,
        delta: &OutputDelta,
        _usage: Option<&Usage>,
    ) {
        let mut scores = if self.with_logprobs {
            let names = TokenNames {
                tokenizer: &self.tokenizer,
                as_ids: false,
            };
            logprobs::chat(names, &delta.tokens, &delta.logprobs).content
        } else {
            Vec::new()
        };
        for event in &delta.events {
            match event {
                OutputEvent::Reasoning(text) => self.writer.reasoning(out, text),
                OutputEvent::Content(text) => {
                    let scores = std::mem::take(&mut scores);
                    self.writer.content(out, text, scores);
                }
                OutputEvent::ToolCallStart { id, name, .. } => self.writer.call(out, id, name),
                OutputEvent::ToolCallArguments { text, .. } => self.writer.arguments(out, text),
            }
        }
        self.finish = delta.finish.or(self.finish);
    }

    fn end(&mut self, out: &mut BytesMut, usage: &Usage, _options: StreamOptions) {
        self.writer.finish(out, self.finish, usage);
    }

    fn fail(&mut self, out: &mut BytesMut, error: &ApiError) {
        self.writer.fail(out, error);
    }

    /// False with log-probabilities: the last event repeats all of them, and a resumed stream lacks
    /// the earlier ones.
    fn resumable(&self) -> bool {
        !self.with_logprobs
    }

    fn response(&mut self, deltas: &[OutputDelta], usage: Usage) -> Vec<u8> {
        // Renders the events to fill the writer's state, and drops them.
        let mut events = BytesMut::new();
        for delta in deltas {
            self.chunk(&mut events, 0, delta, None);
            events.clear();
        }
        self.writer.finish(&mut events, self.finish, &usage);
        self.writer.whole(self.finish, &usage)
    }
}
