//! The events of one stream. What they share is rendered once; a token's text is put into its
//! place.

use bytes::{BufMut, BytesMut};
use penstock_openai::sse::{ChunkWriter, Tail};
use penstock_openai::{
    AssistantMessage, ChatChoice, ChatChunkChoice, ChatResponse, CompletionChoice,
    CompletionResponse, Delta, FinishReason, Usage,
};

/// Stands for the text in a rendered event; JSON would escape it if it were part of anything else.
const PLACE: &str = "{text}";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Completions,
    Chat,
}

/// Who answers, as every body says.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

pub(crate) struct Chunks {
    endpoint: Endpoint,
    writer: ChunkWriter,
    /// The event of a token, before and after its text.
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Chunks {
    pub(crate) fn new(endpoint: Endpoint, identity: &Identity) -> Self {
        let object = match endpoint {
            Endpoint::Completions => "text_completion",
            Endpoint::Chat => "chat.completion.chunk",
        };
        let writer = ChunkWriter::new(&identity.id, object, identity.created, &identity.model);
        let mut chunks = Self {
            endpoint,
            writer,
            before: Vec::new(),
            after: Vec::new(),
        };
        let mut event = BytesMut::new();
        chunks.event(&mut event, PLACE, None, None);
        // The last one: a model may be called like the place.
        let place = event
            .windows(PLACE.len())
            .rposition(|bytes| bytes == PLACE.as_bytes())
            .unwrap_or_default();
        chunks.before = event[..place].to_vec();
        chunks.after = event[place + PLACE.len()..].to_vec();
        chunks
    }

    /// A token that is not the last. `text` needs no escape.
    pub(crate) fn token(&self, out: &mut BytesMut, text: &str) {
        out.put_slice(&self.before);
        out.put_slice(text.as_bytes());
        out.put_slice(&self.after);
    }

    /// Any event with a choice.
    pub(crate) fn event(
        &self,
        out: &mut BytesMut,
        text: &str,
        finish_reason: Option<FinishReason>,
        usage: Option<&Usage>,
    ) {
        let tail = Tail {
            usage,
            prompt_token_ids: None,
        };
        match self.endpoint {
            Endpoint::Completions => {
                let choice = completion_choice(text, finish_reason);
                self.writer.choice(out, &choice, tail);
            }
            Endpoint::Chat => {
                let choice = chat_choice(None, text, finish_reason);
                self.writer.choice(out, &choice, tail);
            }
        }
    }

    /// What comes before the first token: the role of a chat.
    pub(crate) fn opening(&self, out: &mut BytesMut, usage: Option<&Usage>) {
        if self.endpoint == Endpoint::Chat {
            let tail = Tail {
                usage,
                prompt_token_ids: None,
            };
            let choice = chat_choice(Some("assistant"), "", None);
            self.writer.choice(out, &choice, tail);
        }
    }

    /// The event without choices.
    pub(crate) fn usage(&self, out: &mut BytesMut, usage: &Usage) {
        self.writer.usage(out, usage);
    }
}

fn completion_choice(text: &str, finish_reason: Option<FinishReason>) -> CompletionChoice<'_> {
    CompletionChoice {
        index: 0,
        text,
        logprobs: None,
        finish_reason,
        stop_reason: None,
        prompt_token_ids: None,
        token_ids: None,
    }
}

fn chat_choice<'a>(
    role: Option<&'static str>,
    content: &'a str,
    finish_reason: Option<FinishReason>,
) -> ChatChunkChoice<'a> {
    ChatChunkChoice {
        index: 0,
        delta: Delta {
            role,
            content: Some(content),
        },
        logprobs: None,
        finish_reason,
        stop_reason: None,
        token_ids: None,
    }
}

/// The body of a request that does not stream.
pub(crate) fn whole(
    endpoint: Endpoint,
    identity: &Identity,
    text: &str,
    finish_reason: Option<FinishReason>,
    usage: Usage,
) -> Vec<u8> {
    let (id, model, created) = (&identity.id, &identity.model, identity.created);
    let body = match endpoint {
        Endpoint::Completions => serde_json::to_vec(&CompletionResponse {
            id,
            object: "text_completion",
            created,
            model,
            choices: vec![completion_choice(text, finish_reason)],
            usage,
        }),
        Endpoint::Chat => serde_json::to_vec(&ChatResponse {
            id,
            object: "chat.completion",
            created,
            model,
            choices: [ChatChoice {
                index: 0,
                message: AssistantMessage {
                    role: "assistant",
                    content: text,
                },
                logprobs: None,
                finish_reason,
                stop_reason: None,
                token_ids: None,
            }],
            usage,
            prompt_token_ids: None,
        }),
    };
    // Plain data with string keys always serialises.
    body.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_spliced_event_is_a_rendered_one() {
        for endpoint in [Endpoint::Completions, Endpoint::Chat] {
            let identity = Identity {
                id: "x-{text}".to_owned(),
                created: 7,
                model: "m\"{text}".to_owned(),
            };
            let chunks = Chunks::new(endpoint, &identity);
            let (mut spliced, mut rendered) = (BytesMut::new(), BytesMut::new());
            chunks.token(&mut spliced, " t5");
            chunks.event(&mut rendered, " t5", None, None);
            assert_eq!(spliced, rendered);
        }
    }
}
