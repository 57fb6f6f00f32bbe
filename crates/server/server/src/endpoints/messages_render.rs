//! Renders output deltas as events of `/v1/messages` and as whole messages.

use bytes::BytesMut;
use penstock_api_types::{ApiError, FinishReason, MessageWriter, StopReason, StreamOptions, Usage};
use penstock_output_parsers::OutputEvent;

use crate::delta::OutputDelta;
use crate::render::Render;

pub(crate) struct MessagesRender {
    writer: MessageWriter,
    /// The output is limited by the context, not by `max_tokens`.
    capped: bool,
    finish: Option<FinishReason>,
    stop: Option<StopReason>,
}

impl MessagesRender {
    pub(crate) fn new(writer: MessageWriter, capped: bool) -> Self {
        Self {
            writer,
            capped,
            finish: None,
            stop: None,
        }
    }

    fn finish(&mut self, out: &mut BytesMut, usage: &Usage) -> serde_json::Value {
        let end = self
            .writer
            .end(self.finish, self.stop.as_ref(), self.capped);
        self.writer.finish(out, &end, usage);
        end
    }
}

impl Render for MessagesRender {
    fn chunk(
        &mut self,
        out: &mut BytesMut,
        _index: usize,
        delta: &OutputDelta,
        usage: Option<&Usage>,
    ) {
        if let Some(usage) = usage {
            self.writer.start(out, usage);
        }
        for event in &delta.events {
            match event {
                OutputEvent::Reasoning(text) => self.writer.reasoning(out, text),
                OutputEvent::Content(text) => self.writer.content(out, text),
                OutputEvent::ToolCallStart { id, name, .. } => self.writer.call(out, id, name),
                OutputEvent::ToolCallArguments { text, .. } => self.writer.arguments(out, text),
            }
        }
        self.finish = delta.finish.or(self.finish);
        if delta.stop_reason.is_some() {
            self.stop.clone_from(&delta.stop_reason);
        }
    }

    fn end(&mut self, out: &mut BytesMut, usage: &Usage, _options: StreamOptions) {
        self.finish(out, usage);
    }

    fn fail(&mut self, out: &mut BytesMut, error: &ApiError) {
        self.writer.fail(out, error);
    }

    fn response(&mut self, deltas: &[OutputDelta], usage: Usage) -> Vec<u8> {
        // Renders the events to fill the writer's state, and drops them.
        let mut events = BytesMut::new();
        for delta in deltas {
            self.chunk(&mut events, 0, delta, None);
            events.clear();
        }
        let end = self.finish(&mut events, &usage);
        self.writer.whole(&end, &usage)
    }
}
