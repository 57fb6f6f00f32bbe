//! Server-sent events: `data: {json}\n\n` and nothing else. Writers append to a buffer that the
//! caller reuses.

use bytes::{BufMut, BytesMut};
use serde::Serialize;

use crate::Usage;
use crate::error::ApiError;

/// Appends the end of a stream, also of a failed one.
pub fn done(out: &mut BytesMut) {
    out.extend_from_slice(b"data: [DONE]\n\n");
}

/// Appends an error event.
pub fn error(out: &mut BytesMut, error: &ApiError) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(&error.to_json());
    out.extend_from_slice(b"\n\n");
}

/// Writes the chunks of one stream. Their common head is rendered once.
pub struct ChunkWriter {
    /// `data: {"id":...,"object":...,"created":...,"model":...,"choices":[`
    head: Vec<u8>,
}

/// Optional fields after the choices of a chunk.
#[derive(Default, Clone, Copy)]
pub struct Tail<'a> {
    pub usage: Option<&'a Usage>,
    pub prompt_token_ids: Option<&'a [u32]>,
}

impl ChunkWriter {
    /// `object` is `chat.completion.chunk` or `text_completion`.
    pub fn new(id: &str, object: &str, created: u64, model: &str) -> Self {
        #[derive(Serialize)]
        struct Head<'a> {
            id: &'a str,
            object: &'a str,
            created: u64,
            model: &'a str,
        }
        let mut head = b"data: ".to_vec();
        append(
            &mut head,
            &Head {
                id,
                object,
                created,
                model,
            },
        );
        head.pop();
        head.extend_from_slice(b",\"choices\":[");
        Self { head }
    }

    /// Appends a chunk with one choice.
    pub fn choice(&self, out: &mut BytesMut, choice: &impl Serialize, tail: Tail<'_>) {
        out.extend_from_slice(&self.head);
        append(&mut out.writer(), choice);
        self.end(out, tail);
    }

    /// Appends the chunk without choices that has the usage of the whole request.
    pub fn usage(&self, out: &mut BytesMut, usage: &Usage) {
        out.extend_from_slice(&self.head);
        self.end(
            out,
            Tail {
                usage: Some(usage),
                prompt_token_ids: None,
            },
        );
    }

    fn end(&self, out: &mut BytesMut, tail: Tail<'_>) {
        out.extend_from_slice(b"]");
        if let Some(ids) = tail.prompt_token_ids {
            out.extend_from_slice(b",\"prompt_token_ids\":");
            append(&mut out.writer(), &ids);
        }
        if let Some(usage) = tail.usage {
            out.extend_from_slice(b",\"usage\":");
            append(&mut out.writer(), usage);
        }
        out.extend_from_slice(b"}\n\n");
    }
}

/// Neither the values (plain structs with string keys) nor the sink (memory) can fail.
fn append(out: &mut impl std::io::Write, value: &impl Serialize) {
    let written = serde_json::to_writer(out, value);
    debug_assert!(written.is_ok(), "plain data serialises: {written:?}");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{ChatChunkChoice, CompletionChoice, Delta, FinishReason};

    fn text(out: BytesMut) -> String {
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn chat_chunk_bytes() {
        let writer = ChunkWriter::new("chatcmpl-1", "chat.completion.chunk", 7, "m\"x");
        let mut out = BytesMut::new();
        let delta = Delta {
            role: None,
            content: Some("a\n\"é"),
            ..Delta::default()
        };
        let choice = ChatChunkChoice {
            index: 0,
            delta,
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
        };
        writer.choice(&mut out, &choice, Tail::default());
        assert_eq!(
            text(out),
            "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":7,\
             \"model\":\"m\\\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\\n\\\"é\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
        );
    }

    #[test]
    fn completion_chunk_with_everything() {
        let writer = ChunkWriter::new("cmpl-1", "text_completion", 7, "m");
        let mut out = BytesMut::new();
        let choice = CompletionChoice {
            index: 2,
            text: "x",
            logprobs: None,
            finish_reason: Some(FinishReason::Length),
            stop_reason: None,
            prompt_logprobs: None,
            prompt_token_ids: None,
            token_ids: Some(&[5]),
        };
        let usage = Usage {
            prompt_tokens: 3,
            completion_tokens: 4,
            cached_tokens: 1,
            ..Usage::default()
        };
        writer.choice(
            &mut out,
            &choice,
            Tail {
                usage: Some(&usage),
                prompt_token_ids: None,
            },
        );
        assert_eq!(
            text(out),
            "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":7,\
             \"model\":\"m\",\"choices\":[{\"index\":2,\"text\":\"x\",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null,\"token_ids\":[5]}],\"usage\":\
             {\"prompt_tokens\":3,\"completion_tokens\":4,\"total_tokens\":7,\"prompt_tokens_details\":{\"cached_tokens\":1},\
             \"completion_tokens_details\":{\"reasoning_tokens\":0}}}\n\n"
        );
    }

    #[test]
    fn usage_done_and_error() {
        let writer = ChunkWriter::new("i", "o", 1, "m");
        let mut out = BytesMut::new();
        writer.usage(&mut out, &Usage::default());
        assert!(text(out.split()).contains("\"choices\":[],\"usage\":{"));
        error(&mut out, &ApiError::engine_failed("killed"));
        done(&mut out);
        let sent = text(out);
        assert!(
            sent.starts_with("data: {\"error\":{\"message\":\"The engine failed: killed\""),
            "{sent}"
        );
        assert!(sent.ends_with("}}\n\ndata: [DONE]\n\n"), "{sent}");
    }
}
