//! Converts the events of an output to the members of a chat message or delta.

use std::borrow::Cow;

use penstock_api_types::{FunctionCall, ToolCall};
use penstock_output_parsers::OutputEvent;

/// Contents of one message or delta.
#[derive(Debug, Default)]
pub(super) struct Parts<'a> {
    pub(super) reasoning: Option<Cow<'a, str>>,
    pub(super) content: Option<Cow<'a, str>>,
    calls: Vec<CallPart<'a>>,
}

#[derive(Debug)]
struct CallPart<'a> {
    index: usize,
    /// Id and name, if the call begins in this delta.
    begins: Option<(&'a str, &'a str)>,
    arguments: Cow<'a, str>,
}

impl<'a> Parts<'a> {
    pub(super) fn of(events: &'a [OutputEvent]) -> Self {
        let mut parts = Self::default();
        for event in events {
            match event {
                OutputEvent::Reasoning(text) => join(&mut parts.reasoning, text),
                OutputEvent::Content(text) => join(&mut parts.content, text),
                OutputEvent::ToolCallStart { index, id, name } => parts.calls.push(CallPart {
                    index: *index,
                    begins: Some((id, name)),
                    arguments: Cow::Borrowed(""),
                }),
                OutputEvent::ToolCallArguments { index, text } => parts.argue(*index, text),
            }
        }
        parts
    }

    fn argue(&mut self, index: usize, text: &'a str) {
        match self.calls.last_mut() {
            Some(call) if call.index == index && call.arguments.is_empty() => {
                call.arguments = Cow::Borrowed(text);
            }
            Some(call) if call.index == index => call.arguments.to_mut().push_str(text),
            _ => self.calls.push(CallPart {
                index,
                begins: None,
                arguments: Cow::Borrowed(text),
            }),
        }
    }

    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// The tool calls; `indexed` for the chunks of a stream.
    pub(super) fn calls(&self, indexed: bool) -> Vec<ToolCall<'_>> {
        let written = self.calls.iter().map(|part| ToolCall {
            index: indexed.then_some(part.index),
            id: part.begins.map(|(id, _)| id),
            kind: part.begins.map(|_| "function"),
            function: function(part),
        });
        written.collect()
    }

    /// The first call in the legacy `function_call` form.
    pub(super) fn function_call(&self) -> Option<FunctionCall<'_>> {
        self.calls.first().map(function)
    }
}

fn function<'c>(part: &'c CallPart<'_>) -> FunctionCall<'c> {
    FunctionCall {
        name: part.begins.map(|(_, name)| name),
        arguments: &part.arguments,
    }
}

fn join<'a>(all: &mut Option<Cow<'a, str>>, more: &'a str) {
    match all {
        Some(text) => text.to_mut().push_str(more),
        None => *all = Some(Cow::Borrowed(more)),
    }
}
